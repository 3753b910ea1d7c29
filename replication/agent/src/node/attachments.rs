//! The attachments of the programs to interfaces, which other programs may end.

use super::{Attached, Hook, NO_INTERFACE, Node};
use hawser_io::kept::{Deviation, Item, Problem};
use std::collections::BTreeSet;

/// A program that should be attached to an interface.
struct Attachment {
    program: &'static str,
    interface: String,
    is_attached: bool,
}

impl Item for Attachment {
    fn name(&self) -> String {
        format!("{} on {}", self.program, self.interface)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        (!self.is_attached).then(|| Problem {
            what: format!(
                "{}: another program has detached the eBPF program",
                self.name()
            ),
            advice: "the agent attaches it again".to_owned(),
        })
    }
}

impl Hook {
    fn program(self) -> &'static str {
        match self {
            Hook::Deduplicate => "deduplication",
            Hook::ReplicateTransit => "replication of transit traffic",
            Hook::ReplicateLocal => "replication of local traffic",
        }
    }
}

impl Node {
    /// Marks the programs that another program has detached as not attached.
    pub(super) fn notice_detached(&mut self) {
        self.record_attachments();
        let Node {
            attached, receiver, ..
        } = self;
        let Some(receiver) = receiver else { return };
        let ended = attached.iter_mut().filter(|((hook, _), attached)| {
            *hook == Hook::Deduplicate && !receiver.is_attached(attached.number)
        });
        ended.for_each(|(_, attached)| attached.number = NO_INTERFACE);
    }

    /// Records which programs are attached to interfaces that exist.
    pub(super) fn record_attachments(&mut self) {
        let items = self.attached.iter().filter_map(|((hook, name), attached)| {
            let number = self.interfaces.number(name)?;
            // It is attached to a new interface as soon as that is noticed.
            if attached.number != NO_INTERFACE && attached.number != number {
                return None;
            }
            Some(Box::new(Attachment {
                program: hook.program(),
                interface: name.clone(),
                is_attached: self.is_attached(*hook, attached),
            }) as Box<dyn Item>)
        });
        let mut items: Vec<_> = items.chain(self.listeners()).collect();
        self.attachments.keep(&mut items);
    }

    /// Returns the attachments of the program that listens for ICMP errors.
    fn listeners(&self) -> impl Iterator<Item = Box<dyn Item>> {
        let names = self.config.paths.values().map(|path| &path.interface);
        names
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter_map(|name| {
                let number = self.interfaces.number(name)?;
                let is_attached = self.sender.as_ref()?.hears_path_errors(number)?;
                Some(Box::new(Attachment {
                    program: "reading of ICMP errors",
                    interface: name.clone(),
                    is_attached,
                }) as Box<dyn Item>)
            })
    }

    fn is_attached(&self, hook: Hook, attached: &Attached) -> bool {
        let number = attached.number;
        let is_attached = match hook {
            Hook::Deduplicate => {
                let receiver = self.receiver.as_ref();
                receiver.is_some_and(|receiver| receiver.is_attached(number))
            }
            Hook::ReplicateTransit | Hook::ReplicateLocal => {
                let sender = self.sender.as_ref();
                sender.is_some_and(|sender| sender.is_attached(number))
            }
        };
        // Why a program is not attached yet is in the status.
        is_attached || number == NO_INTERFACE
    }

    /// Returns the attachments that other programs have ended, the next hops that have moved or do not
    /// answer, and the measurements that this node's firewall has dropped, since the agent was started.
    pub(crate) fn deviations(&self) -> Vec<Deviation> {
        [
            self.attachments.deviations(),
            self.paths.deviations(),
            self.requests.deviations(),
        ]
        .concat()
    }
}
