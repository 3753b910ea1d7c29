use axum::body::{Body, Bytes};
use axum::extract::Request;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

/// Whether a request has arrived in full, which tells a slow client from a slow store.
#[derive(Clone)]
pub(super) struct Arrival(Arc<AtomicBool>);

impl Arrival {
    /// Follows the body of a request.
    pub(super) fn of(request: Request) -> (Request, Arrival) {
        let is_complete = request.body().is_end_stream();
        let arrival = Arrival(Arc::new(AtomicBool::new(is_complete)));
        let followed = arrival.clone();
        let request = request.map(|body| {
            Body::new(Followed {
                body,
                arrival: followed,
            })
        });
        (request, arrival)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Followed {
    body: Body,
    arrival: Arrival,
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
            self.arrival.0.store(true, Ordering::Relaxed);
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
