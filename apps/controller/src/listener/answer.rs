//! Answers on their way, and whether the other end takes them.
//!
//! HTTP/2 has windows of its own above TCP's: a client that reads its socket, answers pings and grants no window would hold
//! an answer for ever. So each part of an answer is followed until the last byte of it went out.

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Buf, Frame, SizeHint};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The requests of a connection, from when they come until their answers are out.
#[derive(Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Default)]
struct State {
    in_flight: usize,
    ever: u64,
    /// Parts that are to be sent, and when a byte of each went out last.
    unsent: HashMap<u64, Instant>,
    next_part: u64,
}

impl Answers {
    /// One more request.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.state();
        state.in_flight += 1;
        state.ever += 1;
        InFlight(self.clone())
    }

    /// Waits until there was no request for `period`.
    pub(super) async fn are_idle(&self, period: Duration) {
        loop {
            let before = self.state().ever;
            tokio::time::sleep(period).await;
            let state = self.state();
            if state.in_flight == 0 && state.ever == before {
                return;
            }
        }
    }

    /// Waits until nothing of an answer was taken for `period`.
    pub(super) async fn are_unread(&self, period: Duration) {
        loop {
            let longest = self
                .state()
                .unsent
                .values()
                .min()
                .map(Instant::elapsed)
                .unwrap_or_default();
            if longest >= period {
                return;
            }
            tokio::time::sleep(period - longest).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request whose answer is not out yet, streams included.
pub(super) struct InFlight(Arc<Answers>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
    }
}

/// The body of an answer.
pub(super) struct Followed {
    body: Body,
    in_flight: Arc<InFlight>,
}

impl Followed {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        Followed {
            body,
            in_flight: Arc::new(in_flight),
        }
    }
}

impl HttpBody for Followed {
    type Data = Part;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let part = |frame: Frame<Bytes>| frame.map_data(|bytes| Part::new(bytes, &self.in_flight));
        Poll::Ready(frame.map(|frame| frame.map(part)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of an answer until it is sent or given up.
pub(super) struct Part {
    bytes: Bytes,
    number: u64,
    in_flight: Arc<InFlight>,
}

impl Part {
    fn new(bytes: Bytes, in_flight: &Arc<InFlight>) -> Self {
        let mut state = in_flight.0.state();
        let number = state.next_part;
        state.next_part += 1;
        state.unsent.insert(number, Instant::now());
        drop(state);
        Part {
            bytes,
            number,
            in_flight: in_flight.clone(),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.in_flight.0.state().unsent.remove(&self.number);
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.in_flight
            .0
            .state()
            .unsent
            .insert(self.number, Instant::now());
    }
}
