use axum::body::{Body, Bytes};
use axum::extract::Request;
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The part of an unread body that is read and discarded, and the time for that.
const DISCARDED_BYTES: usize = 1 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The arrival of a request's body.
#[derive(Clone, Default)]
pub(super) struct Arrival(Arc<State>);

#[derive(Default)]
struct State {
    is_complete: AtomicBool,
    /// The body if it was dropped before it was read to its end.
    unread: Mutex<Option<Body>>,
}

impl Arrival {
    /// Follows the body of a request.
    pub(super) fn of(request: Request) -> (Request, Arrival) {
        let arrival = Arrival::default();
        let is_complete = request.body().is_end_stream();
        arrival.0.is_complete.store(is_complete, Ordering::Relaxed);
        let state = arrival.0.clone();
        let request = request.map(|body| Body::new(Followed { body, state }));
        (request, arrival)
    }

    /// Returns whether the request has arrived in full, which tells a slow client from a slow store.
    pub(super) fn is_complete(&self) -> bool {
        self.0.is_complete.load(Ordering::Relaxed)
    }

    /// Reads what was not read of the body, within limits, while the response is sent. A stream that is reset because
    /// its body is not read fails in clients that have not finished sending (curl 7.88), although they have a response.
    pub(super) fn discard_rest(&self) {
        let Some(mut body) = self.0.unread.lock().take() else {
            return;
        };
        let discard = async move {
            let mut left = DISCARDED_BYTES;
            while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                left = match left.checked_sub(length) {
                    Some(left) => left,
                    None => return,
                };
            }
        };
        // It holds nothing of the controller, so that nothing has to wait for it.
        tokio::spawn(tokio::time::timeout(DISCARD_TIMEOUT, discard));
    }
}

struct Followed {
    body: Body,
    state: Arc<State>,
}

impl hyper::body::Body for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.state.is_complete.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if !self.state.is_complete.load(Ordering::Relaxed) {
            let body = std::mem::take(&mut self.body);
            *self.state.unread.lock() = Some(body);
        }
    }
}
