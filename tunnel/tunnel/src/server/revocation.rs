//! Ends the sessions of clients that are not admitted any more.

use super::Server;
use crate::config::{ClientList, ServerConfig};
use crate::join::CloseCode;
use crate::tls::Peer;
use hawser_units::Line;
use tracing::{error, info, warn};

impl Server {
    /// Reads the configuration file again and applies its list of clients. A file that is not valid
    /// changes nothing.
    pub(super) fn reload_clients(&self) {
        let outcome = ServerConfig::read(&self.file).map(|config| self.apply(config));
        let rejected = outcome
            .err()
            .map(|error| Line::of_output(error.to_string().as_bytes()).into_string());
        if let Some(error) = &rejected {
            error!("the file is rejected, the previous list of clients stays in use: {error}");
        }
        *self.rejected_file.lock() = rejected;
        self.changed.notify_one();
    }

    fn apply(&self, mut config: ServerConfig) {
        let list = std::mem::replace(&mut config.client_list, self.config.client_list.clone());
        config.transport.clone_from(&self.config.transport);
        // Everything but the list.
        if config != self.config {
            warn!("other settings than the list of clients have changed: they need a restart");
        }
        if *self.client_list.read() == list {
            return;
        }
        info!(
            clients = list.clients.len(),
            revoked_clients = list.revoked_clients.len(),
            revoked_certificates = list.revoked_certificates.len(),
            "list of clients reloaded"
        );
        self.registry.fix(&list.clients);
        // Before sessions are ended: a client that is admitted by the previous list meanwhile finds
        // the new one when its path is added.
        self.client_list.write().clone_from(&list);
        self.end_revoked(
            "the configuration",
            |client| list.admits_name(client),
            |peer| admits(&list, peer),
        );
    }

    /// Ends sessions whose clients are not admitted any more, and closes connections whose
    /// certificates are not. A client with another certificate may join again. `by` names what
    /// decides.
    pub(super) fn end_revoked(
        &self,
        by: &str,
        admits_name: impl Fn(&str) -> bool,
        admits: impl Fn(&Peer) -> bool,
    ) {
        for open in self.registry.sessions() {
            if !admits_name(&open.client) {
                warn!(
                    client = open.client,
                    "session closed: {by} no longer admits this client"
                );
                self.registry.count_refusal("revoked");
                open.handle.stop(CloseCode::Refused);
                continue;
            }
            let closed = open.close_unless(&admits);
            if closed > 0 {
                warn!(
                    client = open.client,
                    closed, "connections closed: {by} has revoked or replaced their certificate"
                );
                self.registry.count_refusals("revoked", closed);
            }
        }
    }

    /// Returns whether the client is admitted, as far as is known here.
    pub(super) fn admits_now(&self, peer: &Peer) -> bool {
        let allowlist = self.allowlist.as_ref();
        admits(&self.client_list.read(), peer)
            && allowlist.is_none_or(|allowlist| allowlist.contains(peer))
    }
}

fn admits(list: &ClientList, peer: &Peer) -> bool {
    list.admits(&peer.name, &peer.serial)
}
