//! The reports of one application: its lines, how many it may send, and the answers.

use hawser_experience::{Answer, MAX_LINE_BYTES, Report, ReportError};
use hawser_units::Instant;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which each report uses up the limit: ten reports a second.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The reports that may come at once.
const BURST: u32 = 20;

/// The flows that one application may report on.
const MAX_FLOWS: usize = 16;

/// The reports beyond the limit after which an application is disconnected.
const MAX_EXCESS: u32 = 100;

/// The reason that a report is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// The user may not report.
    User,
    /// Too many applications are connected.
    Applications,
    /// The line is not that of a report.
    Line,
    /// The report is about a flow that the node does not have.
    Flow,
    /// The application reports on too many flows.
    Flows,
    /// The application reports too often.
    Rate,
}

impl Refusal {
    /// Returns the name of the reason.
    pub(super) fn name(self) -> &'static str {
        match self {
            Refusal::User => "user",
            Refusal::Applications => "applications",
            Refusal::Line => "line",
            Refusal::Flow => "flow",
            Refusal::Flows => "flows",
            Refusal::Rate => "rate",
        }
    }
}

/// The state of one application.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// The time up to which the limit is used up.
    used_until: Instant,
    excess: u32,
    flows: Named,
}

/// A reason to refuse, for the counts and for the application.
pub(super) type Refused = (Refusal, String);

/// The flows that one application has reported on.
#[derive(Debug, Default)]
pub(super) struct Named(BTreeSet<String>);

impl Named {
    /// Adds a flow.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn admit(&mut self, flow: &str) -> Result<(), Refused> {
        if self.0.len() >= MAX_FLOWS && !self.0.contains(flow) {
            let reason = format!("a connection is for up to {MAX_FLOWS} flows: use another one");
            return Err((Refusal::Flows, reason));
        }
        self.0.insert(flow.to_owned());
        Ok(())
    }
}

/// The answers to what an application has sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// Lines of JSON.
    pub(super) text: String,
    /// Whether the application is disconnected.
    pub(super) ends: bool,
}

impl Session {
    /// Handles bytes of the application. `take` returns the name of the flow that a report is about, or why it is
    /// refused; `refuse` counts what is refused.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        bytes: &[u8],
        mut take: impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
        mut refuse: impl FnMut(Refusal),
    ) -> Answers {
        let mut answers = Answers::default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() > MAX_LINE_BYTES {
                refuse(Refusal::Line);
                answers.text += &Answer::refusal(&ReportError::TooLong.to_string()).line();
                answers.ends = true;
                return answers;
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.handle_line(now, &line, &mut take, &mut refuse, &mut answers);
            }
            if answers.ends {
                break;
            }
        }
        answers
    }

    /// Handles the end of what the application sends. Its last line may lack the line feed.
    pub(super) fn handle_end(
        &mut self,
        now: Instant,
        mut take: impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
        mut refuse: impl FnMut(Refusal),
    ) -> Answers {
        let mut answers = Answers::default();
        let line = std::mem::take(&mut self.line);
        self.handle_line(now, &line, &mut take, &mut refuse, &mut answers);
        answers.ends = true;
        answers
    }

    fn handle_line(
        &mut self,
        now: Instant,
        line: &[u8],
        take: &mut impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
        refuse: &mut impl FnMut(Refusal),
        answers: &mut Answers,
    ) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let answer = match self.handle_report(now, line, take) {
            Ok(flow) => Answer::Taken(flow),
            Err((refusal, reason)) => {
                refuse(refusal);
                Answer::refusal(&reason)
            }
        };
        answers.text += &answer.line();
        answers.ends = self.excess > MAX_EXCESS;
    }

    fn handle_report(
        &mut self,
        now: Instant,
        line: &[u8],
        take: &mut impl FnMut(&Report, &mut Named) -> Result<String, Refused>,
    ) -> Result<String, Refused> {
        if !self.may_report(now) {
            let per_s = 1_000 / REPORT_EVERY.as_millis();
            let reason =
                format!("more than {per_s} reports in a second; one in a second is enough");
            return Err((Refusal::Rate, reason));
        }
        let report = Report::parse(line).map_err(|error| (Refusal::Line, error.to_string()))?;
        take(&report, &mut self.flows)
    }

    /// Uses the limit for a report. Returns whether there was room.
    fn may_report(&mut self, now: Instant) -> bool {
        let used_until = self.used_until.max(now);
        let has_room = used_until.saturating_since(now) <= REPORT_EVERY * (BURST - 1);
        if has_room {
            self.used_until = used_until + REPORT_EVERY;
        } else {
            self.excess += 1;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experience::Subject;
    use proptest::prelude::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Passes bytes in. Returns the answers, the reports that were taken, and the refusals.
    fn pass(
        session: &mut Session,
        now: Instant,
        bytes: &[u8],
    ) -> (Answers, Vec<Report>, Vec<Refusal>) {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let take = |report: &Report, flows: &mut Named| match &report.subject {
            Subject::Flow(flow) if flow.starts_with("stage") => {
                flows.admit(flow)?;
                taken.push(report.clone());
                Ok(flow.clone())
            }
            _ => Err((Refusal::Flow, "no such flow".to_owned())),
        };
        let answers = session.handle(now, bytes, take, |refusal| refused.push(refusal));
        (answers, taken, refused)
    }

    fn report(flow: &str) -> String {
        format!("{{\"flow\":\"{flow}\",\"late\":1}}\n")
    }

    #[test]
    fn a_line_may_arrive_in_pieces() {
        let mut session = Session::default();
        let line = report("stage");
        let (answers, taken, _) = pass(&mut session, at(0), &line.as_bytes()[..9]);
        assert_eq!((answers, taken.len()), (Answers::default(), 0));
        let rest = format!("{}\n{line}", &line[9..]);
        let (answers, taken, refused) = pass(&mut session, at(0), rest.as_bytes());
        assert_eq!(answers.text, "{\"taken\":\"stage\"}\n".repeat(2));
        assert_eq!((taken.len(), refused.len(), answers.ends), (2, 0, false));
    }

    #[test]
    fn the_last_line_may_lack_its_end() {
        let mut session = Session::default();
        pass(&mut session, at(0), report("stage").trim_end().as_bytes());
        let answers = session.handle_end(at(0), |_, _| Ok("stage".to_owned()), |_| ());
        assert_eq!(answers.text, "{\"taken\":\"stage\"}\n");
        assert!(answers.ends);
    }

    #[test]
    fn what_is_wrong_is_answered_and_the_next_line_is_taken() {
        let mut session = Session::default();
        let lines = format!("late\n{}{}", report("other"), report("stage"));
        let (answers, taken, refused) = pass(&mut session, at(0), lines.as_bytes());
        let answers: Vec<_> = answers.text.lines().collect();
        assert!(
            answers[0].starts_with("{\"error\":\"not a report: "),
            "{answers:?}"
        );
        assert_eq!(
            answers[1..],
            ["{\"error\":\"no such flow\"}", "{\"taken\":\"stage\"}"]
        );
        assert_eq!(
            (taken.len(), refused),
            (1, vec![Refusal::Line, Refusal::Flow])
        );
    }

    #[test]
    fn a_line_without_an_end_is_refused_once() {
        let mut session = Session::default();
        let (answers, _, refused) = pass(&mut session, at(0), &[b'x'; MAX_LINE_BYTES]);
        assert_eq!((answers.ends, refused.len()), (false, 0));
        let (answers, _, refused) = pass(&mut session, at(0), b"x");
        assert!(
            answers.ends && answers.text.contains("longer than 1024 bytes"),
            "{answers:?}"
        );
        assert_eq!(refused, [Refusal::Line]);
    }

    #[test]
    fn too_many_reports_are_refused_and_then_disconnect() {
        let mut session = Session::default();
        let many = report("stage").repeat(25);
        let (answers, taken, refused) = pass(&mut session, at(0), many.as_bytes());
        assert_eq!((taken.len(), refused.len()), (20, 5));
        assert!(
            answers.text.contains("more than 10 reports in a second"),
            "{answers:?}"
        );
        assert!(!answers.ends);
        let (_, taken, _) = pass(&mut session, at(1_000), many.as_bytes());
        assert_eq!(taken.len(), 10);
        let (answers, ..) = pass(
            &mut session,
            at(1_000),
            report("stage").repeat(500).as_bytes(),
        );
        assert!(answers.ends);
    }

    #[test]
    fn a_connection_is_for_a_number_of_flows() {
        let mut session = Session::default();
        for number in 0..MAX_FLOWS as u64 {
            let line = report(&format!("stage-{number}"));
            let (_, taken, _) = pass(&mut session, at(number * 100), line.as_bytes());
            assert_eq!(taken.len(), 1);
        }
        let (_, taken, refused) = pass(&mut session, at(5_000), report("stage-x").as_bytes());
        assert_eq!((taken.len(), refused), (0, vec![Refusal::Flows]));
        let (_, taken, _) = pass(&mut session, at(5_000), report("stage-0").as_bytes());
        assert_eq!(taken.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_answered_in_bounds(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'{'), Just(b'"'), any::<u8>()], 0..4_000),
            piece in 1usize..3_000,
        ) {
            let mut session = Session::default();
            for bytes in bytes.chunks(piece) {
                let (answers, ..) = pass(&mut session, at(0), bytes);
                prop_assert!(session.line.len() <= MAX_LINE_BYTES);
                prop_assert!(answers.text.lines().all(|line| Answer::parse(line.as_bytes()).is_ok()));
                if answers.ends {
                    break;
                }
            }
        }
    }
}
