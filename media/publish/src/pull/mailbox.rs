use hawser_codec::pull::MAX_IN_FLIGHT;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;

/// The outstanding requests of a viewer, and the newest frame that was not sent to it. A newer
/// frame replaces one that is waiting, so a viewer never gets a frame twice and never an old one.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: usize,
    newest: Option<Arc<Vec<u8>>>,
    skipped: u64,
    is_closed: bool,
}

/// The error of a viewer that sends more requests than the protocol allows.
#[derive(Debug, thiserror::Error)]
#[error("more than {MAX_IN_FLIGHT} requests are outstanding")]
pub(crate) struct TooManyRequests;

impl Mailbox {
    /// Adds a request of the viewer.
    pub(crate) fn request(&self) -> Result<(), TooManyRequests> {
        let mut state = self.state();
        if state.requests == MAX_IN_FLIGHT {
            return Err(TooManyRequests);
        }
        state.requests += 1;
        self.changed.notify_one();
        Ok(())
    }

    /// Offers a captured frame. Returns `false` if the mailbox is closed.
    pub(crate) fn offer(&self, frame: &Arc<Vec<u8>>) -> bool {
        let mut state = self.state();
        if state.newest.replace(Arc::clone(frame)).is_some() {
            state.skipped += 1;
        }
        self.changed.notify_one();
        !state.is_closed
    }

    /// Waits until there are both a request and a frame. Returns `None` if the mailbox is closed.
    pub(crate) fn take(&self) -> Option<Arc<Vec<u8>>> {
        let waiting =
            |state: &mut State| !state.is_closed && (state.requests == 0 || state.newest.is_none());
        let mut state = self.state();
        self.changed.wait_while(&mut state, waiting);
        if state.is_closed {
            return None;
        }
        state.requests -= 1;
        state.newest.take()
    }

    /// Closes the mailbox: the viewer has disconnected, or the publisher stops.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_one();
    }

    /// Returns the number of frames that were replaced by newer ones before they could be sent.
    pub(crate) fn skipped(&self) -> u64 {
        self.state().skipped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u8) -> Arc<Vec<u8>> {
        Arc::new(vec![number])
    }

    #[test]
    fn a_request_is_answered_with_the_newest_frame_and_never_twice() {
        let mailbox = Mailbox::default();
        mailbox.offer(&frame(1));
        mailbox.offer(&frame(2));
        mailbox.request().unwrap();
        mailbox.request().unwrap();

        assert_eq!(mailbox.take(), Some(frame(2)));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| mailbox.take());
            mailbox.offer(&frame(3));
            assert_eq!(
                second.join().unwrap(),
                Some(frame(3)),
                "the answer waits for the next capture"
            );
        });
        assert_eq!(mailbox.skipped(), 1);
    }

    #[test]
    fn a_frame_waits_for_a_request() {
        let mailbox = Mailbox::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| mailbox.take());
            mailbox.offer(&frame(1));
            mailbox.request().unwrap();
            assert_eq!(taken.join().unwrap(), Some(frame(1)));
        });
    }

    #[test]
    fn closing_ends_the_wait_and_the_offers() {
        let mailbox = Mailbox::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| mailbox.take());
            mailbox.close();
            assert_eq!(taken.join().unwrap(), None);
        });
        assert!(!mailbox.offer(&frame(1)));
    }

    #[test]
    fn requests_are_bounded() {
        let mailbox = Mailbox::default();
        assert!((0..MAX_IN_FLIGHT).all(|_| mailbox.request().is_ok()));
        assert!(mailbox.request().is_err());
    }
}
