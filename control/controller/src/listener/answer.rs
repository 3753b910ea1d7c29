//! Tracking of responses that are being sent, to detect clients that do not read them.
//!
//! HTTP/2 has its own flow control above TCP's: a client that reads its socket, answers pings and
//! grants no window would hold a response forever. So each part of a response is tracked until its
//! last byte is sent.

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Buf, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The requests of a connection, from their arrival until their responses are sent.
#[derive(Default)]
pub(super) struct Responses(Mutex<State>);

#[derive(Default)]
struct State {
    in_flight: usize,
    total: u64,
    /// The unsent parts, with the time at which a byte of each was last sent.
    unsent: HashMap<u64, Instant>,
    next_part: u64,
}

impl Responses {
    /// Registers a request.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.state();
        state.in_flight += 1;
        state.total += 1;
        InFlight(self.clone())
    }

    /// Waits until there has been no request for `period`.
    pub(super) async fn are_idle(&self, period: Duration) {
        loop {
            let before = self.state().total;
            tokio::time::sleep(period).await;
            let state = self.state();
            if state.in_flight == 0 && state.total == before {
                return;
            }
        }
    }

    /// Waits until some part of a response has made no progress for `period`.
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
        self.0.lock()
    }
}

/// A request whose response, which may be a stream, is not completely sent yet.
pub(super) struct InFlight(Arc<Responses>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
    }
}

/// The body of a response.
pub(super) struct TrackedBody {
    body: Body,
    in_flight: Arc<InFlight>,
}

impl TrackedBody {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        TrackedBody {
            body,
            in_flight: Arc::new(in_flight),
        }
    }
}

impl HttpBody for TrackedBody {
    type Data = Chunk;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let part = |frame: Frame<Bytes>| frame.map_data(|bytes| Chunk::new(bytes, &self.in_flight));
        Poll::Ready(frame.map(|frame| frame.map(part)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of a response until it is sent or dropped.
pub(super) struct Chunk {
    bytes: Bytes,
    number: u64,
    in_flight: Arc<InFlight>,
}

impl Chunk {
    fn new(bytes: Bytes, in_flight: &Arc<InFlight>) -> Self {
        let mut state = in_flight.0.state();
        let number = state.next_part;
        state.next_part += 1;
        state.unsent.insert(number, Instant::now());
        drop(state);
        Chunk {
            bytes,
            number,
            in_flight: in_flight.clone(),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.in_flight.0.state().unsent.remove(&self.number);
    }
}

impl Buf for Chunk {
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
