//! The viewer's poses over time.

use anyhow::{Context, bail, ensure};
use hawser_cloud::Pose;
use hawser_io::file::read_text;
use hawser_units::Instant;
use serde::Deserialize;
use std::path::Path;

/// The viewer's poses from a time on. The last one is held.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Poses {
    began: Instant,
    /// At least one, in the order of their times.
    rows: Vec<Row>,
}

/// A line of a table of poses.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Row {
    /// Seconds since the start.
    time_s: f64,
    /// Metres.
    x: f32,
    y: f32,
    z: f32,
    /// Degrees to the left and upwards.
    yaw: f32,
    pitch: f32,
}

impl Poses {
    /// Reads a table, which begins now.
    ///
    /// # Errors
    /// If there is none, or a line is not valid.
    pub(crate) fn read(path: &Path, now: Instant) -> anyhow::Result<Self> {
        let open = || Poses::parse(&read_text(path)?, now);
        open().with_context(|| format!("cannot read the poses in {}", path.display()))
    }

    fn parse(table: &str, began: Instant) -> anyhow::Result<Self> {
        let mut rows: Vec<Row> = Vec::new();
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        for row in reader.deserialize() {
            let row: Row = row.context("columns are time_s,x,y,z,yaw,pitch")?;
            let line = rows.len() + 2;
            let Row {
                x,
                y,
                z,
                yaw,
                pitch,
                ..
            } = row;
            let is_in_range = [x, y, z, yaw, pitch]
                .iter()
                .all(|number| number.abs() <= MAX_NUMBER);
            ensure!(
                is_in_range && (0.0..=MAX_SECONDS).contains(&row.time_s),
                "line {line}: must be numbers up to {MAX_NUMBER}, and the time 0 to {MAX_SECONDS} s"
            );
            if rows.last().is_some_and(|last| last.time_s >= row.time_s) {
                bail!("line {line}: the time has to be later than that of the line before");
            }
            rows.push(row);
        }
        ensure!(!rows.is_empty(), "there is no pose");
        Ok(Poses { began, rows })
    }

    /// Returns the pose at a time: between two lines in proportion, before the first and after the last one
    /// as in that line.
    pub(crate) fn at(&self, now: Instant) -> Pose {
        let time_s = now.saturating_since(self.began).as_secs_f64();
        let next = self.rows.partition_point(|row| row.time_s <= time_s);
        let before = &self.rows[next.saturating_sub(1)];
        let after = self.rows.get(next).unwrap_or(before);
        let step = (after.time_s - before.time_s).max(f64::MIN_POSITIVE);
        let share = ((time_s - before.time_s) / step).clamp(0.0, 1.0) as f32;
        let between = |before: f32, after: f32| before + share * (after - before);
        // The shorter way around.
        let turn = (after.yaw - before.yaw + 180.0).rem_euclid(360.0) - 180.0;
        let yaw = before.yaw + share * turn;
        let position = [
            between(before.x, after.x),
            between(before.y, after.y),
            between(before.z, after.z),
        ];
        Pose::looking(
            position.map(|metres| metres * 1000.0),
            yaw.to_radians(),
            between(before.pitch, after.pitch).to_radians(),
        )
    }
}

/// The largest number of metres or degrees.
const MAX_NUMBER: f32 = 1e6;

/// The latest time in a table: a year.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: Instant = Instant::from_nanos(5_000_000_000);

    fn at(poses: &Poses, seconds: f64) -> Pose {
        poses.at(START + Duration::from_secs_f64(seconds))
    }

    fn poses(table: &str) -> anyhow::Result<Poses> {
        Poses::parse(table, START)
    }

    #[test]
    fn poses_are_interpolated_along_the_shorter_rotation() {
        let table =
            "time_s,x,y,z,yaw,pitch\n1,0,1.5,2,170,0\n3,1,1.5,2,-170,-20\n3.5,4,1.5,2,0,0\n";
        let poses = poses(table).unwrap();
        let looking = |x: f32, yaw: f32, pitch: f32| {
            Pose::looking(
                [x * 1000.0, 1500.0, 2000.0],
                yaw.to_radians(),
                pitch.to_radians(),
            )
        };
        for (time, expected) in [
            (0.0, looking(0.0, 170.0, 0.0)),
            (1.0, looking(0.0, 170.0, 0.0)),
            (2.0, looking(0.5, 180.0, -10.0)),
            (3.5, looking(4.0, 0.0, 0.0)),
            (99.0, looking(4.0, 0.0, 0.0)),
        ] {
            assert_eq!(at(&poses, time), expected, "{time} s");
        }
    }

    #[test]
    fn a_table_that_is_not_valid_is_refused_with_the_reason() {
        for (table, reason) in [
            ("time_s,x,y,z,yaw,pitch\n", "there is no pose"),
            ("time_s,x,y,z,yaw\n0,0,0,0,0\n", "columns are time_s"),
            ("time_s,x,y,z,yaw,pitch\n0,0,NaN,0,0,0\n", "line 2: must be"),
            ("time_s,x,y,z,yaw,pitch\n-1,0,0,0,0,0\n", "line 2: must be"),
            (
                "time_s,x,y,z,yaw,pitch\n0,3e38,0,0,0,0\n",
                "line 2: must be",
            ),
            (
                "time_s,x,y,z,yaw,pitch\n1,0,0,0,0,0\n1,0,0,0,0,0\n",
                "line 3: the time has to be later",
            ),
        ] {
            let error = format!("{:#}", poses(table).unwrap_err());
            assert!(error.contains(reason), "{table}: {error}");
        }
    }
}
