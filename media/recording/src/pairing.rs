//! Images of several cameras that belong together because they were taken at the same time.

use crate::ffmpeg::VideoError;
use crate::images::images_error;
use crate::recorded::Clip;

/// The largest difference of time between images of index files that belong together, as in `associate.py` of the
/// TUM RGB-D benchmark. Of other images it is half of the time between two of them if that is more.
const MAX_DIFFERENCE_S: f64 = 0.020;

/// The number of intervals of the frame rate above which the time between two images is not what it seems.
const MAX_INTERVALS: f64 = 100.0;

/// The time without an image that is said.
const LONG_PAUSE_S: f64 = 5.0;

/// The frames of a recording: which image of each clip belongs to them.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The time of each frame in seconds after the first one.
    pub(crate) times_s: Vec<f64>,
    /// The time of the first frame in the first clip, in seconds; 0 if its times are not those of a file.
    pub(crate) start_s: f64,
    /// For each clip, the number of its image in each frame.
    pub(crate) images: Vec<Vec<usize>>,
}

impl Frames {
    /// Returns the frames that all clips have images for. `fps` is the frame rate of the recording.
    ///
    /// # Errors
    /// If there are none, or their times cannot be seconds.
    pub(crate) fn of(clips: &[&Clip], fps: f64) -> Result<Self, VideoError> {
        let Some((first, others)) = clips.split_first() else {
            return Ok(Frames {
                times_s: Vec::new(),
                start_s: 0.0,
                images: Vec::new(),
            });
        };
        let mut of_clips = clips.iter().zip(delays_s(clips, fps));
        let mut next_times_s = || {
            let (clip, delay_s) = of_clips.next().expect("one for each clip");
            let times_s = clip.times_s().iter();
            times_s.map(|time_s| time_s + delay_s).collect::<Vec<_>>()
        };
        let mut times_s = next_times_s();
        let mut images: Vec<Vec<usize>> = vec![(0..times_s.len()).collect()];
        for clip in others {
            let clip_times_s = next_times_s();
            let are_indexed = first.is_indexed() && clip.is_indexed();
            let difference_s = match are_indexed {
                true => MAX_DIFFERENCE_S,
                false => {
                    let interval_s =
                        median_interval_s(&times_s).max(median_interval_s(&clip_times_s));
                    MAX_DIFFERENCE_S.max(0.5 * interval_s)
                }
            };
            let mut pairs = associate(&times_s, &clip_times_s, difference_s);
            // Images are shown in their order.
            let mut last = None;
            pairs.retain(|(_, image)| {
                let follows = last.is_none_or(|last| last < *image);
                last = last.max(Some(*image));
                follows
            });
            if pairs.is_empty() {
                return Err(none_in_common(first, clip, difference_s));
            }
            times_s = pairs.iter().map(|(frame, _)| times_s[*frame]).collect();
            for of_clip in &mut images {
                *of_clip = pairs.iter().map(|(frame, _)| of_clip[*frame]).collect();
            }
            images.push(pairs.into_iter().map(|(_, image)| image).collect());
        }
        let start_s = times_s.first().copied().unwrap_or_default();
        times_s.iter_mut().for_each(|time_s| *time_s -= start_s);
        let start_s = if first.is_indexed() { 0.0 } else { start_s };
        let frames = Frames {
            times_s,
            start_s,
            images,
        };
        frames.check_intervals(first, fps)?;
        frames.report(clips);
        Ok(frames)
    }

    /// Fails if the frames are so far apart that their times are in another unit. Says where one is late.
    fn check_intervals(&self, first: &Clip, fps: f64) -> Result<(), VideoError> {
        let interval_s = median_interval_s(&self.times_s);
        if interval_s * fps > MAX_INTERVALS {
            let reason = format!(
                "its images are {interval_s:.1} s apart, and the recording has {fps} frames a second: times are in seconds, or in smaller units since 1970"
            );
            return Err(images_error(first.name(), reason));
        }
        for (frame, pair) in self.times_s.windows(2).enumerate() {
            let pause_s = pair[1] - pair[0];
            if pause_s > LONG_PAUSE_S.max(2.0 * interval_s) {
                let pause_s = (10.0 * pause_s).round() / 10.0;
                tracing::warn!(images = %first.name().display(), frame, pause_s, "a long time without an image");
            }
        }
        Ok(())
    }

    /// Says how many images belong to no frame.
    fn report(&self, clips: &[&Clip]) {
        for (clip, used) in clips.iter().zip(&self.images) {
            let all = clip.times_s().len();
            let (Some(first), Some(last)) = (used.first(), used.last()) else {
                continue;
            };
            let (before, after) = (*first, all - 1 - last);
            let between = all - before - after - used.len();
            if used.len() < all {
                tracing::warn!(
                    images = %clip.name().display(),
                    used = used.len(),
                    before_the_others = before,
                    after_the_others = after,
                    between,
                    "images left out that have none of the same time"
                );
            }
        }
        if clips.len() > 1 {
            tracing::info!(frames = self.times_s.len(), "images associated by time");
        }
    }
}

/// Returns by how much the first number of each clip is later than the smallest one, if it is numbered. Clips that have no
/// number in common were not numbered together: they begin at the same time.
fn delays_s(clips: &[&Clip], fps: f64) -> Vec<f64> {
    let numbers = || clips.iter().filter_map(|clip| clip.numbers());
    let first = numbers().map(|numbers| numbers.start).min();
    let last_start = numbers().map(|numbers| numbers.start).max();
    let first_end = numbers().map(|numbers| numbers.end).min();
    if last_start >= first_end && last_start.is_some() {
        tracing::warn!(
            "no number is that of an image of every camera: the first ones are taken for those of one time"
        );
        return vec![0.0; clips.len()];
    }
    let delay = |clip: &&Clip| {
        let numbers = clip.numbers().zip(first);
        numbers.map_or(0.0, |(numbers, first)| (numbers.start - first) as f64 / fps)
    };
    clips.iter().map(delay).collect()
}

fn none_in_common(first: &Clip, other: &Clip, difference_s: f64) -> VideoError {
    let limit_ms = (1000.0 * difference_s).round();
    let range = |clip: &Clip| {
        let times_s = clip.times_s();
        let first = times_s.first().copied().unwrap_or_default();
        format!(
            "{first} to {} s",
            times_s.last().copied().unwrap_or_default()
        )
    };
    let reason = format!(
        "no image was taken within {limit_ms} ms of one of {}: their times are {} and {}",
        other.name().display(),
        range(first),
        range(other)
    );
    images_error(first.name(), reason)
}

fn median_interval_s(times_s: &[f64]) -> f64 {
    let mut intervals_s: Vec<f64> = times_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
    intervals_s.sort_by(f64::total_cmp);
    intervals_s
        .get(intervals_s.len() / 2)
        .copied()
        .unwrap_or_default()
}

/// Returns pairs of indices of the times that belong together: the closest times first, each time
/// once. Both lists are in order; so are the pairs, by the first list.
fn associate(colors_s: &[f64], depths_s: &[f64], difference_s: f64) -> Vec<(usize, usize)> {
    let mut candidates = Vec::new();
    for (color, color_s) in colors_s.iter().enumerate() {
        let first = depths_s.partition_point(|depth_s| color_s - depth_s >= difference_s);
        let near = (first..depths_s.len())
            .map(|depth| ((depths_s[depth] - color_s).abs(), color, depth))
            .take_while(|(apart_s, _, _)| *apart_s < difference_s);
        candidates.extend(near);
    }
    candidates.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let (mut used_colors, mut used_depths) =
        (vec![false; colors_s.len()], vec![false; depths_s.len()]);
    let mut pairs = Vec::new();
    for (_, color, depth) in candidates {
        if !used_colors[color] && !used_depths[depth] {
            (used_colors[color], used_depths[depth]) = (true, true);
            pairs.push((color, depth));
        }
    }
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn the_nearest_times_belong_together() {
        // The second colour image is nearer to the depth image than the first; the last has none.
        let colors = [0.990, 1.001, 1.034, 2.0];
        let depths = [1.003, 1.020, 1.060];
        assert_eq!(
            associate(&colors, &depths, MAX_DIFFERENCE_S),
            [(1, 0), (2, 1)]
        );
        assert_eq!(associate(&[1.0], &[1.021], MAX_DIFFERENCE_S), []);
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_the_definition(
            mut colors in vec(0u16..300, 0..12),
            mut depths in vec(0u16..300, 0..12),
        ) {
            colors.sort_unstable();
            depths.sort_unstable();
            let seconds = |times: &[u16]| -> Vec<f64> {
                times.iter().map(|time| f64::from(*time) / 1024.0).collect()
            };
            let pairs = associate(&seconds(&colors), &seconds(&depths), MAX_DIFFERENCE_S);
            prop_assert_eq!(pairs, by_definition(&colors, &depths));
        }
    }

    /// The closest pair of those that are left is the next one; times are in units of 1/1024 s.
    fn by_definition(colors: &[u16], depths: &[u16]) -> Vec<(usize, usize)> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        loop {
            let all = (0..colors.len()).flat_map(|a| (0..depths.len()).map(move |b| (a, b)));
            let left = all.filter(|(a, b)| pairs.iter().all(|(c, d)| c != a && d != b));
            let difference = |(a, b): &(usize, usize)| colors[*a].abs_diff(depths[*b]);
            // 20 ms are 20.48 units.
            let next = left
                .filter(|pair| difference(pair) <= 20)
                .min_by_key(|pair| (difference(pair), *pair));
            match next {
                Some(pair) => pairs.push(pair),
                None => break,
            }
        }
        pairs.sort_unstable();
        pairs
    }
}
