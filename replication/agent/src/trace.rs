//! A CSV file of judgements and policy changes, for plots.

use anyhow::{Context, Result};
use hawser_io::clock::unix_ns;
use hawser_model::Name;
use hawser_node::Window;
use hawser_units::{Instant, PathId, PathSet, PolicyCode};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use tracing::error;

/// The columns. Times are those of the kernel's monotonic clock and of the wall clock. Columns that
/// an event does not use are empty. `code` and `probes` are sets of paths: bit i is path i+1.
const HEADER: &str = "monotonic_ns,unix_ns,flow,event,epoch,code,probes,probe_every,packets,lost,path,sent,rewards,only,detail";

/// Writes rows. Does nothing without a file.
#[derive(Debug)]
pub(crate) struct Trace(Option<BufWriter<File>>);

/// A policy change, or a judgement that asks for one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    /// `policy` for a policy that took effect, `judged` for a judgement.
    pub(crate) event: &'static str,
    pub(crate) epoch: u32,
    pub(crate) code: PolicyCode,
    pub(crate) probes: PathSet,
    pub(crate) probe_every: u16,
    pub(crate) detail: &'a str,
}

impl Trace {
    /// Creates the file.
    pub(crate) fn to(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Trace(None));
        };
        let begin = || -> io::Result<_> {
            let mut file = BufWriter::new(hawser_io::file::create(path)?);
            writeln!(file, "{HEADER}")?;
            Ok(file)
        };
        let file = begin().with_context(|| format!("cannot write the trace {}", path.display()))?;
        Ok(Trace(Some(file)))
    }

    /// Writes a window: a row for each path that was used.
    pub(crate) fn window(&mut self, now: Instant, flow: &Name, epoch: u32, window: &Window) {
        for (path, part) in PathId::all()
            .zip(&window.paths)
            .filter(|(_, part)| part.sent > 0)
        {
            let number = path.number();
            let counts = format!(
                "{},{},{number},{},{},{}",
                window.packets, window.lost, part.sent, part.rewards, part.only
            );
            self.row(now, flow, format_args!("window,{epoch},,,,{counts},"));
        }
    }

    /// Writes a policy change or a judgement.
    pub(crate) fn change(&mut self, now: Instant, flow: &Name, change: Change<'_>) {
        let Change {
            event,
            epoch,
            probe_every,
            detail,
            ..
        } = change;
        let (code, probes) = (change.code.0, change.probes.bits());
        let detail = detail.replace(['"', '\n'], "'");
        self.row(
            now,
            flow,
            format_args!("{event},{epoch},{code},{probes},{probe_every},,,,,,,\"{detail}\""),
        );
    }

    /// Writes another event, with a duration or a reason.
    pub(crate) fn event(
        &mut self,
        now: Instant,
        flow: &Name,
        event: &str,
        epoch: Option<u32>,
        detail: &str,
    ) {
        let epoch = epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
        self.row(
            now,
            flow,
            format_args!("{event},{epoch},,,,,,,,,,\"{detail}\""),
        );
    }

    /// Flushes the file.
    pub(crate) fn flush(&mut self) {
        self.attempt(|file| file.flush());
    }

    fn row(&mut self, now: Instant, flow: &Name, rest: std::fmt::Arguments<'_>) {
        self.attempt(|file| writeln!(file, "{},{},{flow},{rest}", now.as_nanos(), unix_ns()));
    }

    /// Writes to the file. A failure, such as a full disk, stops the trace, not the agent.
    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some(file) = &mut self.0 else { return };
        if let Err(cause) = write(file) {
            error!("cannot write the trace, stopping it: {cause}");
            self.0 = None;
        }
    }
}
