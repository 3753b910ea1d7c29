use std::time::Duration;

/// A value that changes in steps: each step holds until the next one starts, and the last one for
/// ever.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps<T>(Vec<(Duration, T)>);

/// An error in steps that do not define a value at every time.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepsError {
    /// The first step does not start at 0.
    #[error("steps must begin at 0")]
    NoStart,
    /// A step does not start after the one before.
    #[error("the step at {0:?} does not come after the one before it")]
    Order(Duration),
}

impl<T: Copy> Steps<T> {
    /// Creates steps from pairs of a start time and a value.
    ///
    /// Returns an error unless the first step starts at zero and each starts after the one before.
    pub fn new(steps: Vec<(Duration, T)>) -> Result<Self, StepsError> {
        if steps.first().is_none_or(|(begin, _)| !begin.is_zero()) {
            return Err(StepsError::NoStart);
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
            return Err(StepsError::Order(pair[1].0));
        }
        Ok(Steps(steps))
    }

    /// Returns the value that holds at `elapsed`.
    pub fn at(&self, elapsed: Duration) -> T {
        self.0[self.index(elapsed)].1
    }

    /// Returns all values in order.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.0.iter().map(|(_, value)| *value)
    }

    /// Returns the steps from the one that holds at `elapsed` on: each value and the end of its
    /// step, which the last one does not have.
    pub fn since(&self, elapsed: Duration) -> impl Iterator<Item = (T, Option<Duration>)> {
        let first = self.index(elapsed);
        (first..self.0.len()).map(|i| (self.0[i].1, self.0.get(i + 1).map(|(begin, _)| *begin)))
    }

    fn index(&self, elapsed: Duration) -> usize {
        self.0.partition_point(|(begin, _)| *begin <= elapsed) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_until_the_next() {
        let ms = Duration::from_millis;
        let steps = Steps::new(vec![(ms(0), 'a'), (ms(10), 'b'), (ms(30), 'c')]).unwrap();

        assert_eq!(
            [ms(0), ms(9), ms(10), ms(29), ms(30), ms(999)].map(|t| steps.at(t)),
            ['a', 'a', 'b', 'b', 'c', 'c']
        );
        assert_eq!(
            steps.since(ms(12)).collect::<Vec<_>>(),
            [('b', Some(ms(30))), ('c', None)]
        );
    }

    #[test]
    fn every_time_needs_one_value() {
        let ms = Duration::from_millis;
        assert_eq!(Steps::<u8>::new(vec![]), Err(StepsError::NoStart));
        assert_eq!(Steps::new(vec![(ms(1), 0)]), Err(StepsError::NoStart));
        assert_eq!(
            Steps::new(vec![(ms(0), 0), (ms(5), 1), (ms(5), 2)]),
            Err(StepsError::Order(ms(5)))
        );
    }
}
