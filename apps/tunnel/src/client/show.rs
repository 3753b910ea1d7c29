use super::Client;
use crate::status::{SessionStatus, Status, UplinkStatus};

impl Client {
    /// Writes the status.
    pub(super) async fn show(&mut self) {
        let mut status = Status::new(&self.config.common, "client");
        status.addresses = self.addresses.iter().map(|(address, _)| *address).collect();
        status.dropped = self.device.drop_counts();
        status.tables_restored = self.tables.iter().map(|table| table.restored()).sum();
        if let Some(current) = &self.current
            && let Some(report) = current.handle.report().await
        {
            let peer = &current.server;
            status.sessions.push(SessionStatus::new(
                peer,
                &current.addresses,
                current.since,
                report,
            ));
        }
        let path = |name: &str| {
            status
                .sessions
                .iter()
                .flat_map(|session| &session.paths)
                .find(|path| path.name == name)
        };
        let uplinks = self.uplinks.borrow().clone();
        let uplinks = uplinks.iter().map(|uplink| {
            let usage = self.supervisor.usage();
            let state = match (
                path(&uplink.interface),
                self.dialer.dial_errors.of(&uplink.interface),
            ) {
                _ if usage.is_used_up(uplink) => "monthly cap used up".to_owned(),
                (Some(path), Some(why)) if path.is_silent() => format!("silent; {why}"),
                (Some(_), _) => "connected".to_owned(),
                (None, Some(why)) => format!("not connected to {why}"),
                (None, None) => "connecting".to_owned(),
            };
            UplinkStatus {
                name: uplink.interface.clone(),
                state,
                month_bytes: uplink.monthly_cap.map(|_| usage.of(&uplink.interface)),
            }
        });
        status.uplinks = uplinks.collect();
        let rules = self.config.uplinks.iter();
        let missing = rules.filter(|rule| {
            !status
                .uplinks
                .iter()
                .any(|uplink| rule.matches(&uplink.name))
        });
        let missing: Vec<_> = missing
            .map(|rule| UplinkStatus::missing(&rule.interface))
            .collect();
        status.uplinks.extend(missing);
        *self.last_status.lock() = self.status_file.write(status);
    }
}
