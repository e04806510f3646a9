//! Thread that compresses and writes full buffers, while the next one is filled.
//!
//! [`FileSink`](super::FileSink) gives it the open file with a buffer, and gets both back: so one
//! of the two threads has the file at a time, and there is one buffer beside the one that is
//! filled. If the thread is slower than the packets, the sink waits for it, and packets gather in
//! the ring.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::output::Output;

/// Buffer to be written, and after that the result.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) output: Output,
    pub(super) blocks: Vec<u8>,
    /// Number of packets in the buffer.
    pub(super) packets: u64,
    pub(super) result: io::Result<()>,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    tasks: Option<SyncSender<Task>>,
    done: Receiver<Task>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, which gets the capabilities and the CPUs of this one.
    ///
    /// # Errors
    /// The system has too many threads.
    pub(super) fn start() -> io::Result<Self> {
        // There is at most one task.
        let (tasks, received) = sync_channel::<Task>(1);
        let (sender, done) = sync_channel(1);
        let run = move || {
            while let Ok(mut task) = received.recv() {
                task.result = task.output.compress(&task.blocks);
                if sender.send(task).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("compressor".into()).spawn(run)?;
        Ok(Self { tasks: Some(tasks), done, thread: Some(thread) })
    }

    /// Returns a worker with a thread that ends at its first task, as after a panic.
    #[cfg(test)]
    pub(super) fn that_ends() -> Self {
        let (tasks, received) = sync_channel::<Task>(1);
        let (_, done) = sync_channel(1);
        let thread = std::thread::spawn(move || drop(received.recv()));
        Self { tasks: Some(tasks), done, thread: Some(thread) }
    }

    /// Passes a task to the thread. Returns it if the thread has ended.
    pub(super) fn pass(&self, task: Task) -> Result<(), Box<Task>> {
        match &self.tasks {
            Some(tasks) => tasks.send(task).map_err(|unsent| Box::new(unsent.0)),
            None => Err(Box::new(task)),
        }
    }

    /// Waits for the task that was passed. Returns `None` if the thread has ended.
    pub(super) fn wait(&self) -> Option<Task> {
        self.done.recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
