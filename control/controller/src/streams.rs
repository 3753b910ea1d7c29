//! The open streams to nodes, and what is to be sent on each.

use hawser_model::Name;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

/// The open streams of this controller, one per node.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<Name, Arc<Mailbox>>>);

/// The pending changes of a node.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) marks: Mutex<Marks>,
    pub(crate) wake: Notify,
}

/// The changes that are to be sent.
#[derive(Default)]
pub(crate) struct Marks {
    pub(crate) assignment: bool,
    pub(crate) policies: BTreeSet<Name>,
    /// A newer stream of the same node has replaced this one.
    pub(crate) replaced: bool,
}

impl Mailbox {
    fn mark(&self, mark: impl FnOnce(&mut Marks)) {
        mark(&mut self.marks.lock());
        self.wake.notify_one();
    }
}

impl Streams {
    /// Marks the node's assignment as changed.
    pub(crate) fn renew(&self, node: &Name) {
        self.mark(node, |marks| marks.assignment = true);
    }

    /// Marks the assignments of all nodes as changed.
    pub(crate) fn renew_all(&self) {
        self.0
            .lock()
            .values()
            .for_each(|mailbox| mailbox.mark(|marks| marks.assignment = true));
    }

    /// Marks the policy of one of the node's flows as changed.
    pub(crate) fn policy(&self, node: &Name, flow: &Name) {
        self.mark(node, |marks| {
            marks.policies.insert(flow.clone());
        });
    }

    /// Returns the number of open streams.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn mark(&self, node: &Name, mark: impl FnOnce(&mut Marks)) {
        let mailbox = self.0.lock().get(node).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.mark(mark);
        }
    }

    /// Opens the stream of a node, in place of the one that it may have.
    pub(crate) fn open(&self, node: &Name) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        mailbox.mark(|marks| marks.assignment = true);
        if let Some(before) = self.0.lock().insert(node.clone(), mailbox.clone()) {
            before.mark(|marks| marks.replaced = true);
        }
        mailbox
    }

    /// Closes a stream, unless a newer one of the node has replaced it.
    pub(crate) fn close(&self, node: &Name, mailbox: &Arc<Mailbox>) {
        let mut streams = self.0.lock();
        if streams
            .get(node)
            .is_some_and(|current| Arc::ptr_eq(current, mailbox))
        {
            streams.remove(node);
        }
    }
}
