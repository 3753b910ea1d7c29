use super::extract::{NumberedPageQuery, Query};
use super::filter::{EventFilter, Filtered};
use crate::access::{Operator, Read};
use crate::controller::Controller;
use crate::limit::Checked;
use crate::record::key;
use crate::refusal::{CommonErrors, HandlerError};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Sse, sse};
use hawser_io::clock::unix_ms;
use hawser_model::answer::Page;
use hawser_model::resource::Event;
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The interval of keep-alive events when nothing else is sent.
const PING_EVERY: Duration = Duration::from_secs(15);

/// The maximum number of events that are read from the view at once.
const EVENTS_AT_ONCE: usize = 256;

/// List events, oldest first
///
/// If events after `after` were removed because there were too many, the page begins with an event
/// of the kind `events_missed`, in addition to `limit`.
#[utoipa::path(operation_id = "list_events", get, path = "/v1/events", tag = "operators", params(NumberedPageQuery, EventFilter), security(("token" = [])),
    responses((status = 200, body = Page<Event>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<NumberedPageQuery, EventFilter>,
) -> Result<Json<Page<Event>>, HandlerError> {
    let view = controller.view();
    let events = view
        .events
        .range(query.range())
        .filter(|(_, event)| operator.sees_optional(event.tenant.as_ref()) && filter.admits(event));
    let mut page = query.page(events.map(|(number, event)| (number, event.clone())))?;
    if let Some(after) = query.after().filter(|after| *after < view.trimmed) {
        page.items.insert(0, missed(after, view.trimmed));
    }
    Ok(Json(page))
}

/// Returns an event that stands for those that were removed before they were read.
fn missed(after: u64, trimmed: u64) -> Event {
    Event {
        number: after,
        at_unix_ms: unix_ms(),
        tenant: None,
        node: None,
        flow: None,
        kind: "events_missed".to_owned(),
        message: format!("some events from {after} to {trimmed} are no longer kept"),
    }
}

/// The start of a stream of events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// The number of an event; the stream continues after it. If not given, the stream starts with
    /// new events.
    #[param(required = false, value_type = u64)]
    after: Option<u64>,
}

/// Stream events as they happen: each as an event `event`, whose id is its number
///
/// An event of the kind `events_missed` stands for those that were removed before they could be
/// sent. The first event is a `ping`: its id is the number after which the stream begins, so that a
/// client that has seen no event yet can continue there. The id of a later `ping` is the number
/// up to which everything was sent.
#[utoipa::path(operation_id = "stream_events", get, path = "/v1/events/stream", tag = "operators", params(From), security(("token" = [])),
    responses((status = 200, content_type = "text/event-stream", body = Event, description = "Events `event`, whose data is this; events `ping` have no content"), CommonErrors))]
pub(super) async fn stream(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    headers: HeaderMap,
    Query(from): Query<From>,
) -> Result<impl IntoResponse, HandlerError> {
    let last = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok());
    let (newest, complete) = {
        let view = controller.view();
        (view.events.newest().max(view.trimmed), view.complete)
    };
    let mut after = last.or(from.after).unwrap_or(newest);
    let mut read = VecDeque::new();
    if after > complete
        && let Some(event) = controller.ahead_of_store(&operator.checked, after).await?
    {
        after = event.number;
        read.push_back(event);
    }
    let stream = EventStream {
        missed_until: 0,
        after,
        has_begun: false,
        changes: controller.changes(),
        shutdown: controller.shutdown.subscribe(),
        controller,
        operator,
        read,
    };
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events))
}

impl Controller {
    /// Returns the event for a client that continues after a number which the store has not reached: the
    /// store was restored from a backup, and its numbers were given again. `None` if only this controller
    /// has not reached it yet.
    async fn ahead_of_store(
        &self,
        checked: &Checked,
        after: u64,
    ) -> Result<Option<Event>, HandlerError> {
        let (_, reached) = self.store(checked).list_all(key::INCARNATION).await?;
        let restored = || Event {
            message: format!(
                "the store was restored from a backup: events until {reached} may be missing, and {after} is not in it"
            ),
            ..missed(reached, reached)
        };
        Ok((after > reached).then(restored))
    }
}

/// Reads the view from its position on. It buffers few events, so a slow reader costs no memory.
struct EventStream {
    controller: Arc<Controller>,
    operator: Operator<Read>,
    changes: watch::Receiver<u64>,
    shutdown: watch::Receiver<bool>,
    after: u64,
    /// Whether its position was sent.
    has_begun: bool,
    /// The number up to which removed events were announced.
    missed_until: u64,
    read: VecDeque<Event>,
}

impl EventStream {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if *self.shutdown.borrow() || !self.is_allowed() {
                return None;
            }
            if !std::mem::replace(&mut self.has_begun, true) {
                return Some(ping(self.after));
            }
            if let Some(event) = self.read.pop_front() {
                return Some(to_send(&event));
            }
            self.changes.borrow_and_update();
            if self.read_more() {
                continue;
            }
            let after = self.after;
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                _ = self.shutdown.wait_for(|shutdown| *shutdown) => {}
                () = tokio::time::sleep(PING_EVERY) => return Some(ping(after)),
            }
        }
    }

    /// Returns whether the token is still valid.
    fn is_allowed(&self) -> bool {
        self.operator.is_valid_in(&self.controller.view())
    }

    fn read_more(&mut self) -> bool {
        let view = self.controller.view();
        let events = view
            .events
            .range((Bound::Excluded(self.after), Bound::Unbounded))
            .take(EVENTS_AT_ONCE);
        let mut has_read = false;
        if view.trimmed > self.after.max(self.missed_until) {
            self.missed_until = view.trimmed;
            self.read.push_back(missed(self.after, view.trimmed));
            has_read = true;
        }
        for (number, event) in events {
            self.after = number;
            has_read = true;
            if self.operator.sees_optional(event.tenant.as_ref()) {
                self.read.push_back(event.clone());
            }
        }
        has_read
    }
}

/// Returns the event that says only that everything up to `after` was sent.
fn ping(after: u64) -> sse::Event {
    let event = sse::Event::default().event("ping");
    event.id(after.to_string()).data("{}")
}

/// Returns an event in the form in which it is sent.
fn to_send(event: &Event) -> sse::Event {
    let data = serde_json::to_string(event).expect("an event is text");
    sse::Event::default()
        .event("event")
        .id(event.number.to_string())
        .data(data)
}
