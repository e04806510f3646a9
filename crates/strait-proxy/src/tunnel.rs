//! Bytes both ways between two sockets, which stay in the kernel: CONNECT (RFC 9110, section 9.3.6) and what Upgrade leads to. Where
//! one of them is encrypted they are copied.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::net::Shutdown;
use strait_transfer::pipe::Pipe;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::socket::{Gone, Socket};
use crate::stream::Stream;
use crate::worker::Worker;

/// Moves bytes until both ends have finished, one is gone, or nothing has moved for too long. What was read of either is sent first.
pub(crate) async fn run(
    worker: &Worker,
    client: (&mut Socket, &mut Buffer),
    origin: (&mut Socket, &mut Buffer),
) -> Result<(), Gone> {
    let ((client, from_client), (origin, from_origin)) = (client, origin);
    origin.write_all(from_client.filled(), &[]).await?;
    from_client.clear();
    client.write_all(from_origin.filled(), &[]).await?;
    from_origin.clear();
    let (up, down) = (Cell::new(0), Cell::new(0));
    if !client.is_encrypted() && !origin.is_encrypted() {
        let moved = {
            let (client, origin) = (&client.stream().tcp, &origin.stream().tcp);
            let both = async { tokio::try_join!(splice(client, origin, &up), splice(origin, client, &down)) };
            while_it_moves(worker, both, (&up, &down)).await
        };
        origin.moved.spliced += up.get();
        client.moved.spliced += down.get();
        return moved.map(drop);
    }
    let moved = {
        let (client, origin) = (client.stream(), origin.stream());
        let (mut upward, mut downward) = (Way::new(&up), Way::new(&down));
        let both = poll_fn(|context| {
            let up = upward.poll(client, origin, context)?;
            let down = downward.poll(origin, client, context)?;
            if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        while_it_moves(worker, both, (&up, &down)).await
    };
    origin.count_copied(up.get());
    client.count_copied(down.get());
    moved
}

/// What `both` come to, given up when nothing has moved either way for too long.
async fn while_it_moves<T>(
    worker: &Worker,
    both: impl Future<Output = io::Result<T>>,
    moved: (&Cell<u64>, &Cell<u64>),
) -> Result<T, Gone> {
    let mut both = std::pin::pin!(both);
    loop {
        let before = (moved.0.get(), moved.1.get());
        match tokio::time::timeout(worker.settings().timeouts.tunnel, &mut both).await {
            Ok(ended) => return ended.map_err(Gone::from),
            Err(_) if (moved.0.get(), moved.1.get()) == before => return Err(Gone::TimedOut),
            Err(_) => {}
        }
    }
}

async fn splice(from: &TcpStream, to: &TcpStream, moved: &Cell<u64>) -> io::Result<()> {
    let mut pipe = Pipe::new()?;
    loop {
        let read = from.async_io(Interest::READABLE, || Ok(pipe.fill(from, u64::MAX)?)).await?;
        if read == 0 {
            // The other way may go on.
            let _ = rustix::net::shutdown(to, Shutdown::Write);
            return Ok(());
        }
        while pipe.held() > 0 {
            let sent = to.async_io(Interest::WRITABLE, || Ok(pipe.empty(to, None)?)).await?;
            moved.set(moved.get() + sent as u64);
        }
    }
}

/// Bytes that are copied one way.
struct Way<'a> {
    buffer: Buffer,
    moved: &'a Cell<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Moving,
    /// The sender has finished: the receiver is to know.
    Ending,
    Over,
}

impl<'a> Way<'a> {
    fn new(moved: &'a Cell<u64>) -> Self {
        Self { buffer: Buffer::default(), moved, stage: Stage::Moving }
    }

    fn poll(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.stage {
                Stage::Moving if !self.buffer.is_empty() => {
                    let parts = [IoSlice::new(self.buffer.filled())];
                    let sent = ready!(to.poll_write(context, &parts))?;
                    self.buffer.consume(sent);
                    self.moved.set(self.moved.get() + sent as u64);
                }
                Stage::Moving => {
                    while ready!(to.poll_send(context))? {}
                    if ready!(from.poll_read(context, &mut self.buffer, BUFFER_BYTES))? == 0 {
                        self.stage = Stage::Ending;
                    }
                }
                Stage::Ending => {
                    // The other way may go on.
                    let _ = ready!(to.poll_finish(context));
                    self.stage = Stage::Over;
                }
                Stage::Over => return Poll::Ready(Ok(())),
            }
        }
    }
}
