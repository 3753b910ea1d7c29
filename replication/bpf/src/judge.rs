//! Replay windows at explicit times, for comparison with their specification.

use crate::skeleton::judge::{JudgeSkel, JudgeSkelBuilder};
use crate::{LoadError, RunError, Verdict};
use hawser_dedup::Times;
use hawser_kernel::program::{open, test_run};
use hawser_units::FlowId;
use libbpf_rs::skel::OpenSkel;

/// The replay windows of tagged flows on their own, with explicit times.
pub struct TaggedWindows(JudgeSkel<'static>);

impl TaggedWindows {
    /// Loads empty windows.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("judge");
        let mut open = open::<JudgeSkelBuilder>().map_err(&failed)?;
        for mut program in open.open_object_mut().progs_mut() {
            program.set_autoload(program.name() == "judge");
        }
        Ok(TaggedWindows(open.load().map_err(&failed)?))
    }

    /// Returns the verdict of a flow's window on a packet.
    pub fn observe(
        &self,
        flow: FlowId,
        sequence: u64,
        times: Times,
    ) -> Result<Option<Verdict>, RunError> {
        let words = [sequence, times.sent_micros, times.now_micros].map(u64::to_ne_bytes);
        let start = [flow.index() as u32, times.max_age_micros].map(u32::to_ne_bytes);
        let observation = [&start.concat()[..], &words.concat()].concat();
        let verdict = test_run(&self.0.progs.judge, &observation, 1)?.action;
        Ok(u8::try_from(verdict)
            .ok()
            .and_then(crate::arrivals::verdict))
    }
}
