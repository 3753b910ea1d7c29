//! The choice of the sender of packets: the kernel wherever it can, the process elsewhere.

use crate::forward::{Begun, BroadcastIndex, Forwarder, Outcomes, Served};
use crate::kernel::Kernel;
use crate::process::Process;
use crate::routes::has_ethernet_header;
use anyhow::{Context, Result};
use hawser_audience::Command;
use hawser_fanout::{Budget, Frame, Selection};
use hawser_io::clock;
use hawser_io::interface;
use hawser_units::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Sends packets by the kernel's program, and from the process
/// - to viewers on the relay's own machine, as the kernel would refuse packets from an own address on a device, and
///   to those behind a device without an Ethernet header (TUN, WireGuard, PPP),
/// - and to all viewers of a broadcast that arrives through such a device.
pub struct Senders {
    kernel: Kernel,
    process: Process,
    /// The broadcasts that the kernel's program does not see.
    unseen: BTreeSet<BroadcastIndex>,
    members: BTreeMap<(BroadcastIndex, u32), Member>,
}

/// A subscriber, with what another sender has to be told to serve it.
struct Member {
    address: SocketAddr,
    budget: Budget,
    subscriptions: BTreeMap<u32, Selection>,
    is_by_process: bool,
}

impl Senders {
    /// Loads the kernel's program. `listen` has the address for subscribers of each broadcast.
    ///
    /// # Errors
    /// If the kernel does not load it: it has to be Linux 6.6 or later, and the process needs CAP_BPF, CAP_NET_ADMIN and
    /// CAP_PERFMON.
    pub fn load(listen: &[SocketAddr]) -> Result<Self> {
        Ok(Senders {
            kernel: Kernel::load(listen)?,
            process: Process::new(),
            unseen: BTreeSet::new(),
            members: BTreeMap::new(),
        })
    }

    fn sender(&self, is_by_process: bool) -> &dyn Forwarder {
        if is_by_process {
            &self.process
        } else {
            &self.kernel
        }
    }

    fn sender_mut(&mut self, is_by_process: bool) -> &mut dyn Forwarder {
        if is_by_process {
            &mut self.process
        } else {
            &mut self.kernel
        }
    }

    fn is_by_process(&self, broadcast: BroadcastIndex, session: u32) -> bool {
        let member = self.members.get(&(broadcast, session));
        member.is_some_and(|member| member.is_by_process)
    }

    /// Has the process serve the subscribers that the kernel cannot reach (any more), and the kernel the others.
    fn choose_senders(&mut self, now: Instant) {
        let (unseen, kernel) = (&self.unseen, &mut self.kernel);
        let moved = self.members.iter().filter_map(|(member, state)| {
            let address = state.address.ip();
            let is_by_process = unseen.contains(&member.0) || kernel.needs_process(now, address)?;
            (is_by_process != state.is_by_process).then_some((*member, is_by_process))
        });
        for (member, is_by_process) in moved.collect::<Vec<_>>() {
            if let Err(error) = self.move_to(now, member, is_by_process) {
                tracing::warn!(
                    session = member.1,
                    "a viewer is not sent packets: {error:#}"
                );
            }
        }
    }

    fn move_to(
        &mut self,
        now: Instant,
        (broadcast, session): (BroadcastIndex, u32),
        is_by_process: bool,
    ) -> Result<()> {
        let member = self.members.get(&(broadcast, session));
        let member = member.context("a subscriber that has left")?;
        let was_by_process = member.is_by_process;
        let add = Command::Add {
            session,
            address: member.address,
            budget: member.budget,
        };
        let subscriptions = member.subscriptions.iter();
        let subscribe = subscriptions.map(|(alias, selection)| Command::Subscribe {
            session,
            alias: *alias,
            selection: *selection,
        });
        let commands: Vec<Command> = [add].into_iter().chain(subscribe).collect();
        let before = self.sender_mut(was_by_process);
        before.handle_command(now, broadcast, Command::Remove { session })?;
        let after = self.sender_mut(is_by_process);
        for command in commands {
            after.handle_command(now, broadcast, command)?;
        }
        if let Some(member) = self.members.get_mut(&(broadcast, session)) {
            member.is_by_process = is_by_process;
        }
        Ok(())
    }

    /// Keeps what another sender has to be told of a subscriber.
    fn remember(&mut self, now: Instant, broadcast: BroadcastIndex, command: &Command) {
        let Some(session) = command.session() else {
            return;
        };
        if let Command::Add {
            address, budget, ..
        } = command
        {
            let member = Member {
                address: *address,
                budget: *budget,
                subscriptions: BTreeMap::new(),
                is_by_process: self.unseen.contains(&broadcast)
                    || self.kernel.needs_process(now, address.ip()) == Some(true),
            };
            self.members.insert((broadcast, session), member);
        }
        let Some(member) = self.members.get_mut(&(broadcast, session)) else {
            return;
        };
        match command {
            Command::Subscribe {
                alias, selection, ..
            } => {
                member.subscriptions.insert(*alias, *selection);
            }
            Command::Select { alias, layers, .. } => {
                if let Some(selection) = member.subscriptions.get_mut(alias) {
                    selection.layers = *layers;
                }
            }
            Command::Unsubscribe { alias, .. } => {
                member.subscriptions.remove(alias);
            }
            Command::SetBudget { budget, .. } => member.budget = *budget,
            _ => {}
        }
    }
}

impl Forwarder for Senders {
    fn connect(
        &mut self,
        broadcast: BroadcastIndex,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<()> {
        let route = interface::route(remote.ip(), None)
            .with_context(|| format!("there is no route to {remote}"))?;
        let is_seen = has_ethernet_header(&route.interface)?;
        if is_seen {
            self.kernel.connect(broadcast, local, remote)?;
            self.unseen.remove(&broadcast);
        } else {
            self.kernel.disconnect(broadcast)?;
            self.unseen.insert(broadcast);
        }
        self.process.expect_retagged(broadcast, is_seen);
        self.choose_senders(clock::monotonic());
        Ok(())
    }

    fn handle_command(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        command: Command,
    ) -> Result<()> {
        let Some(session) = command.session() else {
            self.process
                .handle_command(now, broadcast, command.clone())?;
            return self.kernel.handle_command(now, broadcast, command);
        };
        self.remember(now, broadcast, &command);
        let is_last = matches!(command, Command::Remove { .. });
        let is_by_process = self.is_by_process(broadcast, session);
        if is_last {
            self.members.remove(&(broadcast, session));
        }
        let sender = self.sender_mut(is_by_process);
        sender.handle_command(now, broadcast, command)
    }

    fn handle_datagram(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        datagram: &[u8],
    ) -> Option<(Vec<u8>, Vec<SocketAddr>)> {
        self.process.handle_datagram(now, broadcast, datagram)
    }

    fn begun(&mut self) -> Vec<Begun> {
        let mut begun = self.kernel.begun();
        begun.extend(self.process.begun());
        begun
    }

    fn joined(&self, broadcast: BroadcastIndex, session: u32, alias: u32) -> Option<Frame> {
        let sender = self.sender(self.is_by_process(broadcast, session));
        sender.joined(broadcast, session, alias)
    }

    fn renew(&mut self, now: Instant) {
        self.choose_senders(now);
        self.kernel.renew(now);
    }

    fn retags(&self, broadcast: BroadcastIndex) -> bool {
        !self.unseen.contains(&broadcast)
    }

    fn outcomes(&self) -> Outcomes {
        self.kernel.outcomes()
    }

    fn track_outcomes(&self, broadcast: BroadcastIndex) -> Vec<(u32, Outcomes)> {
        self.kernel.track_outcomes(broadcast)
    }

    fn served(&self, broadcast: BroadcastIndex, session: u32) -> Option<Served> {
        let sender = self.sender(self.is_by_process(broadcast, session));
        sender.served(broadcast, session)
    }
}
