//! Threads of the outputs of exchanges: the access log, and spans for a collector.
//!
//! A thread ends with the last copy of its output. Workers hold copies for the requests under way,
//! so that an output which a reload replaces is complete.

use std::path::Path;
use std::thread::JoinHandle;

use crate::cache::worker::Shared;
use crate::config::error::Result;
use crate::config::settings::Settings;
use crate::observe::log::{Log, Writer};
use crate::observe::{OnNote, Outputs};
#[cfg(feature = "otlp")]
use crate::server::export::Exporter;

/// Outputs and their threads.
#[derive(Default)]
pub(super) struct OutputThreads {
    /// Outputs of the present settings.
    pub(super) outputs: Outputs,
    logs: Vec<JoinHandle<()>>,
    #[cfg(feature = "otlp")]
    /// With those that still send the spans of former settings.
    exporters: Vec<Exporter>,
}

impl OutputThreads {
    /// Starts the threads for the settings.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(
        log: Option<(Log, Writer)>,
        settings: &Settings,
        shared: &Shared,
        on_note: &OnNote,
    ) -> Result<Self> {
        let mut threads = Self::default();
        if let Some((log, writer)) = log {
            threads.logs.push(writer.start(on_note.clone())?);
            threads.outputs.log = Some(log);
        }
        threads.outputs = threads.with_spans(threads.outputs.clone(), settings, shared, on_note)?;
        Ok(threads)
    }

    /// Returns the outputs of other settings, for [`Self::outputs`]. Threads that they need are
    /// started, and end with them.
    ///
    /// # Errors
    /// The access log cannot be opened, or a thread cannot be started.
    pub(super) fn prepare(
        &mut self,
        path: Option<&Path>,
        (before, settings): (&Settings, &Settings),
        shared: &Shared,
        on_note: &OnNote,
    ) -> Result<Outputs> {
        let log = match (path, &self.outputs.log) {
            (None, _) => None,
            (Some(path), Some(log)) if log.path == *path => Some(log.clone()),
            (Some(path), _) => {
                let (log, writer) = Log::open(path, &shared.log_lost)?;
                self.logs.push(writer.start(on_note.clone())?);
                Some(log)
            }
        };
        let outputs = Outputs { log, ..self.outputs.clone() };
        if settings.exports_like(before) {
            return Ok(outputs);
        }
        self.with_spans(outputs, settings, shared, on_note)
    }

    /// Returns the outputs with the spans of the settings.
    #[cfg(feature = "otlp")]
    fn with_spans(
        &mut self,
        outputs: Outputs,
        settings: &Settings,
        shared: &Shared,
        on_note: &OnNote,
    ) -> Result<Outputs> {
        self.exporters.retain(|exporter| !exporter.has_ended());
        let started = Exporter::start(settings, &shared.spans, on_note)?;
        // A collector that does not answer could delay the ends of earlier threads for minutes.
        self.exporters.iter_mut().for_each(Exporter::begin_end);
        let (spans, exporter) = started.unzip();
        self.exporters.extend(exporter);
        Ok(Outputs { spans, ..outputs })
    }

    /// Returns the outputs: there are no spans without the feature.
    #[cfg(not(feature = "otlp"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the feature")]
    fn with_spans(
        &mut self,
        outputs: Outputs,
        _settings: &Settings,
        _shared: &Shared,
        _on_note: &OnNote,
    ) -> Result<Outputs> {
        Ok(outputs)
    }

    /// Waits until all is written, and spans are sent or dropped.
    pub(super) fn end(&mut self) {
        self.outputs = Outputs::default();
        let threads = std::mem::take(&mut self.logs).into_iter();
        // All begin to end before one is awaited, so that their time limits do not add up.
        #[cfg(feature = "otlp")]
        let threads = threads.chain(self.exporters.drain(..).map(Exporter::end).collect::<Vec<_>>());
        for thread in threads {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}
