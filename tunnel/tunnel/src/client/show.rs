use super::Client;
use super::files::Contents;
use crate::status::{PathStatus, SessionStatus, Status, UplinkStatus};
use hawser_uplinks::{Reachability, Uplink};

impl Client {
    /// Has the status and the usage written.
    pub(super) async fn show(&mut self) {
        let mut status = Status::new(&self.config.common, "client");
        status.addresses = self.addresses.own.clone();
        status.dropped = self.device.drop_counts();
        status.tables_restored = self.tables.iter().map(|table| table.restored()).sum();
        status.device_restored = self.kept.device_restored();
        status.deviations = self.kept.deviations();
        let of_tables = self.tables.iter().flat_map(|table| table.deviations());
        status.deviations.extend(of_tables);
        let dns = self.dns.shown();
        status.deviations.extend(dns.deviations);
        status.dns = dns
            .state
            .map(|state| state + &self.name_servers_of_networks());
        status.dns_restored = dns.restored;
        status.uplink_domains = dns.uplink_domains;
        status.settings = self.settings.shown();
        status.damaged_files.clone_from(&self.damaged_files);
        let uplinks = self.usable_uplinks();
        let session = self.session_status(&uplinks).await;
        status.uplinks = uplinks
            .iter()
            .map(|uplink| self.uplink_status(uplink, session.as_ref()))
            .chain(self.missing_uplinks(&uplinks))
            .collect();
        status.sessions = session.into_iter().collect();
        self.progress.complete(&mut status);
        *self.last_status.lock() = status.clone();
        self.files.write(Contents {
            usage: self.supervisor.usage().clone(),
            sizes: self.narrow.sizes().clone(),
            status,
        });
    }

    /// Returns what the status adds for name servers that are also addresses of a network of this node.
    fn name_servers_of_networks(&self) -> String {
        let networks = self.networks.borrow();
        let servers = self.config.name_servers_inside();
        let servers = servers.filter(|server| networks.contains(*server));
        let note = |server| {
            format!(
                "; {server} is asked through the tunnel, although a network of this node has this address, too"
            )
        };
        servers.map(note).collect()
    }

    async fn session_status(&self, uplinks: &[Uplink]) -> Option<SessionStatus> {
        let current = self.current.as_ref()?;
        let report = current.handle.report().await?;
        let mut session =
            SessionStatus::new(&current.server, &current.addresses, current.since, report);
        // The cost may have changed since the path was made.
        for path in &mut session.paths {
            let mut uplinks = uplinks.iter();
            let uplink = uplinks.find(|uplink| uplink.interface == path.name);
            path.cost = uplink.map_or(path.cost, |uplink| uplink.cost);
        }
        Some(session)
    }

    fn uplink_status(&self, uplink: &Uplink, session: Option<&SessionStatus>) -> UplinkStatus {
        let interface = &uplink.interface;
        let usage = self.supervisor.usage();
        let state = if usage.is_used_up(uplink) {
            "monthly cap used up".to_owned()
        } else {
            let mut paths = session.into_iter().flat_map(|session| &session.paths);
            self.connection_state(interface, paths.find(|path| path.name == *interface))
        };
        UplinkStatus {
            name: interface.clone(),
            state,
            month_bytes: uplink.monthly_cap.map(|_| usage.of(interface)),
            modem: self.modems.borrow().get(interface).cloned(),
        }
    }

    fn connection_state(&self, interface: &str, path: Option<&PathStatus>) -> String {
        let error = self.dialer.dial_errors.of(interface);
        let reachability = self.supervisor.reachability(interface);
        let (Some(path), Some(reachability)) = (path, reachability) else {
            return error.map_or("connecting".to_owned(), |why| {
                format!("not connected to {why}")
            });
        };
        if reachability < Reachability::Unreachable {
            return "connected".to_owned();
        }
        let silence = format!("no acknowledgement for {} s", path.unacknowledged_ms / 1000);
        match error {
            Some(why) => format!("{silence}; not connected again to {why}"),
            None => silence,
        }
    }

    /// Returns the status of each rule that applies to none of the uplinks.
    fn missing_uplinks(&self, uplinks: &[Uplink]) -> impl Iterator<Item = UplinkStatus> {
        let rules = self.config.uplinks.iter();
        let missing = rules.filter(|rule| {
            let mut uplinks = uplinks.iter();
            !uplinks.any(|uplink| rule.matches(&uplink.interface))
        });
        missing.map(|rule| UplinkStatus::missing(&rule.settings.interface))
    }
}
