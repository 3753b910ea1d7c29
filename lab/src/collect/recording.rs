//! The packets of a run that arrived, and the files that they become.

use super::datagram::{Datagram, Kind};
use super::trace::{Arrivals, DRIVE, STEP, drive};
use super::{MAX_UPLINKS, say};
use anyhow::{Context, Result};
use hawser_io::{file, sockopt};
use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The shortest rest of a longer collection that is a drive.
const SHORTEST_REST: Duration = Duration::from_secs(10);

/// The shortest collection that is a drive.
const SHORTEST: Duration = Duration::from_millis(500);

/// One run of the sending end. Keeps the current drive only, and writes each when it is complete.
pub(super) struct Recording<'a> {
    socket: &'a UdpSocket,
    out: &'a Path,
    /// When the first and the latest packet with data arrived.
    data: Option<(Instant, Instant)>,
    /// The number of drives that are complete.
    drives: u32,
    uplinks: BTreeMap<u8, Uplink>,
    away_ms: [u32; MAX_UPLINKS],
    before: Before,
}

#[derive(Default)]
struct Uplink {
    arrivals: Arrivals,
    round_trip: Option<Duration>,
}

/// The counters at the begin of a drive.
struct Before {
    away_ms: [u32; MAX_UPLINKS],
    dropped: u32,
}

impl<'a> Recording<'a> {
    /// Creates a recording of packets that arrive at `socket`, which writes to the directory `out`.
    pub(super) fn new(socket: &'a UdpSocket, out: &'a Path) -> Result<Recording<'a>> {
        Ok(Recording {
            socket,
            out,
            data: None,
            drives: 0,
            uplinks: BTreeMap::new(),
            away_ms: [0; MAX_UPLINKS],
            before: Before {
                away_ms: [0; MAX_UPLINKS],
                dropped: sockopt::drops(socket)?,
            },
        })
    }

    /// Returns whether data has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.data.is_some()
    }

    /// Notes a datagram of the sending end that arrived at `now`. The first one of another drive writes the drive before
    /// it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn note(&mut self, datagram: &Datagram, now: Instant) -> Result<()> {
        if datagram.kind == Kind::Data {
            let start = self.data.map_or(now, |(start, _)| start);
            self.data = Some((start, now));
            let at = now.saturating_duration_since(start);
            let since_next = at.saturating_sub(DRIVE * (self.drives + 1));
            self.take_absences(&datagram.away_ms, since_next.as_millis() as u32);
            self.write_complete(at)?;
            let uplink = self.uplinks.entry(datagram.uplink).or_default();
            // Times of arrival are not quite in order.
            let at = at.saturating_sub(DRIVE * self.drives);
            uplink.arrivals.note(at, datagram.number);
        }
        if datagram.kind != Kind::End && datagram.time_ns > 0 {
            let uplink = self.uplinks.entry(datagram.uplink).or_default();
            uplink.round_trip = Some(Duration::from_nanos(datagram.time_ns));
        }
        self.take_absences(&datagram.away_ms, 0);
        Ok(())
    }

    /// Takes over for how long the uplinks have not been there, as far as it was before the last `since_next` milliseconds:
    /// these belong to the next drive.
    fn take_absences(&mut self, told_ms: &[u32; MAX_UPLINKS], since_next: u32) {
        for (known, told) in self.away_ms.iter_mut().zip(told_ms) {
            *known += told.saturating_sub(*known).saturating_sub(since_next);
        }
    }

    /// Writes what is left of a run, which has lasted for `length` at the sending end, or until the latest packet. Returns
    /// the number of its drives.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn finish(&mut self, length: Option<Duration>, now: Instant) -> Result<u32> {
        let Some((start, latest)) = self.data else {
            return Ok(0);
        };
        // The clocks of both ends differ.
        let passed = now.saturating_duration_since(start);
        let length = length.map_or(latest - start, |length| length.min(passed));
        self.write_complete(length)?;
        let rest = length.saturating_sub(DRIVE * self.drives);
        // Without a last step that is not complete.
        let steps = (rest.as_nanos() / STEP.as_nanos()) as u32;
        let rest = STEP * steps;
        let shortest = match self.drives {
            0 => SHORTEST,
            _ => SHORTEST_REST,
        };
        if rest >= shortest {
            self.write(rest)?;
        } else if steps > 0 {
            say(format!(
                "the last {rest:.1?} are left out: too short for a drive"
            ));
        }
        Ok(self.drives)
    }

    /// Writes the drives that are complete after `passed`.
    fn write_complete(&mut self, passed: Duration) -> Result<()> {
        while passed >= DRIVE * (self.drives + 1) {
            self.write(DRIVE)?;
        }
        Ok(())
    }

    /// Writes the first `length` of the current drive, and begins the next one.
    fn write(&mut self, length: Duration) -> Result<()> {
        let path = free(self.out);
        // Those of the next drive begin here: packets arrive while this one is written.
        let dropped = sockopt::drops(self.socket)?;
        let notes = self.notes(length, dropped.wrapping_sub(self.before.dropped));
        let known = self.uplinks.iter().filter_map(|(number, uplink)| {
            let round_trip = uplink.round_trip?;
            Some((*number, round_trip, &uplink.arrivals))
        });
        let known: Vec<_> = known.collect();
        let traces = known.iter().filter_map(|(number, _, arrivals)| {
            let trace = arrivals.mahimahi(length)?;
            Some((path.with_extension(format!("{number}.up")), trace))
        });
        let files = traces.chain([
            (path.with_extension("txt"), notes.clone()),
            (path.clone(), drive(&known, length)),
        ]);
        replace_all(&files.collect::<Vec<_>>())?;
        say(format!("{}\n{}", path.display(), notes.trim_end()));

        self.drives += 1;
        self.before = Before {
            away_ms: self.away_ms,
            dropped,
        };
        for uplink in self.uplinks.values_mut() {
            uplink.arrivals.clear();
        }
        Ok(())
    }

    /// Returns a description of the current drive, a line for each uplink. `dropped` is the number of packets that were lost
    /// here.
    fn notes(&self, length: Duration, dropped: u32) -> String {
        let mut notes = format!("{:.1} s\n", length.as_secs_f64());
        for (number, uplink) in &self.uplinks {
            let packets = uplink.arrivals.packets(length);
            let mut line = match uplink.round_trip {
                Some(time) => format!("uplink {number}: round trip {time:.1?}, {packets} packets"),
                None => format!("uplink {number}: LEFT OUT, its round trip is not known"),
            };
            if packets == 0 {
                line += ", so no trace for Mahimahi";
            }
            let index = usize::from(*number);
            let away_ms = self.away_ms[index] - self.before.away_ms[index];
            if away_ms > 0 {
                let seconds = f64::from(away_ms) / 1e3;
                line += &format!(
                    ", {seconds:.1} s without the interface, its address or its route: no lack of coverage"
                );
            }
            notes += &(line + "\n");
        }
        if dropped > 0 {
            notes += &format!(
                "NOT VALID: this machine lost {dropped} packets that had arrived. It was too slow, or its buffer is \
                 too small (net.core.rmem_max)\n"
            );
        }
        notes
    }
}

/// Returns the path of the first drive that does not exist in a directory.
fn free(out: &Path) -> PathBuf {
    let mut paths = (0_u32..).map(|number| out.join(format!("drive-{number:03}.csv")));
    let free = paths.find(|path| !path.exists());
    free.expect("fewer drives than numbers")
}

/// Writes the files of a drive, or none of them.
fn replace_all(files: &[(PathBuf, String)]) -> Result<()> {
    let mut written = files.iter().map(|(path, text)| replace(path, text));
    let result = written.try_for_each(|written| written);
    if result.is_err() {
        for (path, _) in files {
            // Those that come later do not exist.
            let _ = fs::remove_file(path);
        }
    }
    result
}

fn replace(path: &Path, text: &str) -> Result<()> {
    file::replace(path, text.as_bytes(), 0o644)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording of two uplinks, of which only the first has a round trip.
    struct Run<'a> {
        recording: Recording<'a>,
        start: Instant,
        numbers: [u64; 2],
    }

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    impl<'a> Run<'a> {
        fn new(socket: &'a UdpSocket, out: &'a Path) -> Run<'a> {
            Run {
                recording: Recording::new(socket, out).unwrap(),
                start: Instant::now(),
                numbers: [0; 2],
            }
        }

        fn arrive(&mut self, uplink: u8, at: Duration, away_ms: [u32; MAX_UPLINKS]) {
            let number = &mut self.numbers[usize::from(uplink)];
            *number += 1;
            let datagram = Datagram {
                run: 1,
                receiver: 2,
                uplink,
                kind: Kind::Data,
                number: *number,
                sent_ns: 0,
                time_ns: if uplink == 0 { 30_000_000 } else { 0 },
                away_ms,
            };
            self.recording.note(&datagram, self.start + at).unwrap();
        }

        fn finish(&mut self, length: Duration) -> u32 {
            let now = self.start + length;
            self.recording.finish(Some(length), now).unwrap()
        }

        /// One packet in each step from `first` until `end`.
        fn steps(&mut self, first: Duration, end: Duration) {
            let mut at = first;
            while at < end {
                self.arrive(0, at, [0; MAX_UPLINKS]);
                at += STEP;
            }
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn rows(out: &Path, name: &str) -> usize {
        fs::read_to_string(out.join(name)).unwrap().lines().count() - 1
    }

    #[test]
    fn a_drive_that_cannot_be_written_whole_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| (folder.path().join(name), "text".to_owned());
        let files = [
            file("drive-000.0.up"),
            file("drive-000.txt"),
            file("missing/drive-000.csv"),
        ];
        assert!(replace_all(&files).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        replace_all(&files[..2]).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_long_run_is_written_as_drives_of_a_minute() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let out = folder.path();
        let mut run = Run::new(&socket, out);
        run.steps(Duration::ZERO, seconds(60));
        assert!(!out.join("drive-000.csv").exists());
        run.steps(seconds(60), seconds(135));
        assert_eq!(rows(out, "drive-000.csv"), 600);
        assert_eq!(rows(out, "drive-001.csv"), 600);
        assert_eq!(run.finish(seconds(135)), 3);
        assert_eq!(rows(out, "drive-002.csv"), 150);
        for name in ["drive-000.0.up", "drive-001.0.up"] {
            let trace = fs::read_to_string(out.join(name)).unwrap();
            assert!(trace.ends_with("\n60000\n"), "{name}");
        }
        // The next run does not replace the drives of this one, and its rest is too short.
        let mut run = Run::new(&socket, out);
        run.steps(Duration::ZERO, seconds(69));
        assert_eq!(run.finish(seconds(69)), 1);
        assert_eq!(rows(out, "drive-003.csv"), 600);
        assert!(!out.join("drive-004.csv").exists());
    }

    #[test]
    fn a_step_that_is_not_complete_is_left_out() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut run = Run::new(&socket, folder.path());
        run.steps(Duration::ZERO, seconds(2));
        assert_eq!(run.finish(Duration::from_millis(1950)), 1);
        assert_eq!(rows(folder.path(), "drive-000.csv"), 19);
        let trace = fs::read_to_string(folder.path().join("drive-000.0.up")).unwrap();
        assert!(trace.ends_with("\n1900\n"), "{trace}");
    }

    #[test]
    fn a_pause_across_drives_is_an_outage_in_each() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut run = Run::new(&socket, folder.path());
        run.arrive(0, Duration::ZERO, [0; MAX_UPLINKS]);
        run.steps(seconds(130), seconds(131));
        run.finish(seconds(180));
        for name in ["drive-000.csv", "drive-001.csv", "drive-002.csv"] {
            assert_eq!(rows(folder.path(), name), 600);
        }
        // Nothing arrived in the second one.
        assert!(!folder.path().join("drive-001.0.up").exists());
        assert!(folder.path().join("drive-002.0.up").exists());
    }

    #[test]
    fn an_uplink_without_a_round_trip_does_not_discard_the_others() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut run = Run::new(&socket, folder.path());
        run.steps(Duration::ZERO, seconds(1));
        run.arrive(1, seconds(1), [0; MAX_UPLINKS]);
        run.finish(seconds(2));
        assert_eq!(rows(folder.path(), "drive-000.csv"), 20);
        let notes = fs::read_to_string(folder.path().join("drive-000.txt")).unwrap();
        assert!(notes.contains("uplink 0: round trip 30.0ms, 10 packets\n"));
        assert!(notes.contains("uplink 1: LEFT OUT"), "{notes}");
    }

    #[test]
    fn an_uplink_that_is_not_there_is_no_outage() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut run = Run::new(&socket, folder.path());
        let mut away_ms = [0; MAX_UPLINKS];
        run.arrive(0, Duration::ZERO, away_ms);
        away_ms[0] = 12_300;
        run.arrive(0, seconds(20), away_ms);
        run.steps(seconds(60), seconds(80));
        run.finish(seconds(80));
        let notes = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(notes("drive-000.txt").contains("12.3 s without the interface"));
        assert!(!notes("drive-001.txt").contains("without the interface"));
    }

    #[test]
    fn an_absence_across_the_end_of_a_drive_is_noted_in_both() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut run = Run::new(&socket, folder.path());
        run.steps(Duration::ZERO, seconds(50));
        let mut away_ms = [0; MAX_UPLINKS];
        away_ms[0] = 13_000;
        run.arrive(0, seconds(63), away_ms);
        run.finish(seconds(120));
        for (name, part) in [
            ("drive-000.txt", ", 10.0 s without"),
            ("drive-001.txt", ", 3.0 s without"),
        ] {
            let notes = fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(notes.contains(part), "{notes}");
        }
    }
}
