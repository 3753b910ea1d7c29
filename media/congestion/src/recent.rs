use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The lowest sample of the last one to two epochs.
#[derive(Debug, Clone)]
pub(crate) struct LongMinimum<T> {
    current: Option<T>,
    previous: Option<T>,
    began: Instant,
    epoch: Duration,
}

impl<T> LongMinimum<T> {
    pub(crate) const fn new(epoch: Duration) -> Self {
        LongMinimum {
            current: None,
            previous: None,
            began: Instant::ZERO,
            epoch,
        }
    }
}

impl<T: Copy + Ord> LongMinimum<T> {
    pub(crate) fn add(&mut self, now: Instant, sample: T) {
        if now.saturating_since(self.began) > self.epoch {
            self.previous = self.current.take();
            self.began = now;
        }
        self.current = Some(self.current.map_or(sample, |lowest| lowest.min(sample)));
    }

    pub(crate) fn get(&self) -> Option<T> {
        let lowest = [self.current, self.previous];
        lowest.into_iter().flatten().min()
    }

    /// Forgets all samples but this one.
    pub(crate) fn replace(&mut self, now: Instant, sample: T) {
        self.current = Some(sample);
        self.previous = None;
        self.began = now;
    }
}

/// The samples of a short time.
#[derive(Debug, Clone)]
pub(crate) struct Recent<T> {
    span: Duration,
    samples: VecDeque<(Instant, T)>,
}

/// The maximum number of samples of a short time.
const SAMPLES: usize = 64;

impl<T: Copy + Ord> Recent<T> {
    pub(crate) const fn new(span: Duration) -> Self {
        Recent {
            span,
            samples: VecDeque::new(),
        }
    }

    pub(crate) fn add(&mut self, now: Instant, sample: T) {
        self.samples.push_back((now, sample));
        let is_old = |at: Instant| now.saturating_since(at) > self.span;
        while self.samples.len() > SAMPLES
            || self.samples.front().is_some_and(|(at, _)| is_old(*at))
        {
            self.samples.pop_front();
        }
    }

    pub(crate) fn lowest(&self) -> Option<T> {
        self.samples.iter().map(|(_, sample)| *sample).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_minimum_is_forgotten_after_two_epochs() {
        let mut minimum = LongMinimum::new(Duration::from_secs(5));
        minimum.add(at(0), 10);
        for second in 1..13 {
            minimum.add(at(second), 50);
            assert_eq!(minimum.get(), Some(if second < 12 { 10 } else { 50 }));
        }
        minimum.replace(at(13), 70);
        assert_eq!(minimum.get(), Some(70));
    }

    #[test]
    fn few_samples_of_a_short_time_are_kept() {
        let mut recent = Recent::new(Duration::from_secs(2));
        for second in 0..5 {
            recent.add(at(second), second);
        }
        assert_eq!(recent.lowest(), Some(2));
        (0..1000).for_each(|sample| recent.add(at(4), sample));
        assert_eq!(recent.samples.len(), SAMPLES);
    }
}
