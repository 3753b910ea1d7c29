//! Delivery of assignments and policies to nodes by server-sent events.
//!
//! A stream has no queue. Changes are only marked, and the content of an event is read from the
//! view when the node takes it: a slow node skips outdated states, and memory does not grow. A node
//! that takes nothing at all loses its connection (`listener`: TCP's user timeout).

use crate::authority::Presented;
use crate::controller::Controller;
use crate::streams::Mailbox;
use axum::response::sse;
use hawser_model::Name;
use hawser_model::access::TrustedAuthorities;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The interval of keep-alive events when nothing else is sent. Clients give up after three
/// intervals.
const PING_EVERY: Duration = Duration::from_secs(15);

/// The approximate processor time by which a controller accepts a connection of a node and
/// registers it.
const RECONNECTION: Duration = Duration::from_millis(1);

/// Returns a node's stream: the assignment, then every change, until the node's certificate is
/// revoked, another stream of the node replaces it or the controller stops.
pub(crate) fn stream(
    controller: Arc<Controller>,
    node: Presented,
) -> impl futures_util::Stream<Item = Result<sse::Event, Infallible>> {
    let mailbox = controller.streams.open(&node.node);
    let shutdown = controller.shutdown.subscribe();
    let stream = NodeStream {
        mailbox,
        shutdown,
        controller,
        node,
        has_authority: false,
        ended: false,
    };
    futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok(event), stream))
    })
}

struct NodeStream {
    controller: Arc<Controller>,
    node: Presented,
    mailbox: Arc<Mailbox>,
    shutdown: tokio::sync::watch::Receiver<bool>,
    /// Whether the certificates to trust were sent.
    has_authority: bool,
    ended: bool,
}

/// A change that is to be sent.
enum Mark {
    Assignment,
    Policy(Name),
}

impl NodeStream {
    async fn next(&mut self) -> Option<sse::Event> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(reason) = self.end_reason() {
                self.ended = true;
                return Some(sse::Event::default().event("end").data(reason));
            }
            if let Some(event) = self.pending() {
                return Some(event);
            }
            if !std::mem::replace(&mut self.has_authority, true) {
                return Some(self.authority());
            }
            tokio::select! {
                () = self.mailbox.wake.notified() => {}
                _ = self.shutdown.wait_for(|shutdown| *shutdown) => {}
                () = tokio::time::sleep(PING_EVERY) => return Some(sse::Event::default().event("ping").data("{}")),
            }
        }
    }

    fn end_reason(&self) -> Option<&'static str> {
        if *self.shutdown.borrow() {
            Some("the controller is shutting down; reconnect")
        } else if self.mailbox.marks.lock().replaced {
            Some("the node has opened another stream")
        } else if !self.controller.certified(&self.node) {
            Some("the node's certificate is no longer valid")
        } else {
            None
        }
    }

    /// Returns the event for the most important mark.
    fn pending(&self) -> Option<sse::Event> {
        loop {
            match self.take_mark()? {
                Mark::Assignment => return Some(self.assignment()),
                // A flow that was removed in the meantime has also marked the assignment.
                Mark::Policy(flow) => {
                    if let Some(event) = self.policy(&flow) {
                        return Some(event);
                    }
                }
            }
        }
    }

    /// Takes the most important mark.
    fn take_mark(&self) -> Option<Mark> {
        let mut marks = self.mailbox.marks.lock();
        if marks.assignment {
            if self.controller.view().fault().is_some() {
                // The node keeps the last assignment, which may have flows that are missing here.
                return None;
            }
            marks.assignment = false;
            // The assignment contains all policies.
            marks.policies.clear();
            return Some(Mark::Assignment);
        }
        marks.policies.pop_first().map(Mark::Policy)
    }

    fn authority(&self) -> sse::Event {
        let certificates = self.controller.authority.pem().to_owned();
        let trusted = TrustedAuthorities { certificates };
        let data = serde_json::to_string(&trusted).expect("it has text for keys");
        sse::Event::default().event("authority").data(data)
    }

    fn assignment(&self) -> sse::Event {
        let config = &self.controller.config;
        let view = self.controller.view();
        let mut assignment = view.assignment(&self.node.node, config.nodes.report_every_ms);
        assignment.reconnect_within_ms = reconnect_within_ms(view.nodes.len(), config.lease());
        drop(view);
        self.controller.metrics.pushed("assignment");
        event("assignment", assignment.revision, &assignment)
    }

    fn policy(&self, flow: &Name) -> Option<sse::Event> {
        let policy = self.controller.view().policy(flow).cloned()?;
        self.controller
            .metrics
            .pushed_policy(policy.value.decided_unix_ms);
        Some(event("policy", policy.revision, &policy.value))
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.controller
            .streams
            .close(&self.node.node, &self.mailbox);
    }
}

/// Returns the time within which nodes return that have lost their controller, milliseconds. It
/// grows with their number, up to half of the lease time: then they are in time for another
/// controller not to count them as lost.
fn reconnect_within_ms(nodes: usize, lease: Duration) -> u32 {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    let within = RECONNECTION.saturating_mul(nodes).min(lease / 2);
    u32::try_from(within.as_millis()).unwrap_or(u32::MAX)
}

fn event(name: &str, id: u64, data: &impl serde::Serialize) -> sse::Event {
    let data = serde_json::to_string(data).expect("messages have text for keys");
    sse::Event::default()
        .event(name)
        .id(id.to_string())
        .data(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_return_the_more_slowly_the_more_there_are() {
        let lease = Duration::from_secs(15);
        assert_eq!(reconnect_within_ms(0, lease), 0);
        assert_eq!(reconnect_within_ms(2, lease), 2);
        assert_eq!(reconnect_within_ms(3_000, lease), 3_000);
        assert_eq!(reconnect_within_ms(usize::MAX, lease), 7_500);
    }
}
