use super::Client;
use crate::status::{SessionStatus, Status, UplinkStatus};
use hawser_uplinks::Uplink;

impl Client {
    /// Writes the status.
    pub(super) async fn show(&mut self) {
        let mut status = Status::new(&self.config.common, "client");
        status.addresses = self.addresses.iter().map(|(address, _)| *address).collect();
        status.dropped = self.device.drop_counts();
        status.tables_restored = self.tables.iter().map(|table| table.restored()).sum();
        let session = self.session_status().await;
        let uplinks = self.uplinks.borrow().clone();
        status.uplinks = uplinks
            .iter()
            .map(|uplink| self.uplink_status(uplink, session.as_ref()))
            .chain(self.missing_uplinks(&uplinks))
            .collect();
        status.sessions = session.into_iter().collect();
        *self.last_status.lock() = self.status_file.write(status);
    }

    async fn session_status(&self) -> Option<SessionStatus> {
        let current = self.current.as_ref()?;
        let report = current.handle.report().await?;
        Some(SessionStatus::new(
            &current.server,
            &current.addresses,
            current.since,
            report,
        ))
    }

    fn uplink_status(&self, uplink: &Uplink, session: Option<&SessionStatus>) -> UplinkStatus {
        let interface = &uplink.interface;
        let mut paths = session.into_iter().flat_map(|session| &session.paths);
        let path = paths.find(|path| path.name == *interface);
        let usage = self.supervisor.usage();
        let state = match (path, self.dialer.dial_errors.of(interface)) {
            _ if usage.is_used_up(uplink) => "monthly cap used up".to_owned(),
            (Some(path), Some(why)) if path.is_silent() => format!("silent; {why}"),
            (Some(_), _) => "connected".to_owned(),
            (None, Some(why)) => format!("not connected to {why}"),
            (None, None) => "connecting".to_owned(),
        };
        UplinkStatus {
            name: interface.clone(),
            state,
            month_bytes: uplink.monthly_cap.map(|_| usage.of(interface)),
        }
    }

    /// Returns the status of each rule that applies to none of the uplinks.
    fn missing_uplinks(&self, uplinks: &[Uplink]) -> impl Iterator<Item = UplinkStatus> {
        let rules = self.config.uplinks.iter();
        let missing = rules.filter(|rule| {
            let mut uplinks = uplinks.iter();
            !uplinks.any(|uplink| rule.matches(&uplink.interface))
        });
        missing.map(|rule| UplinkStatus::missing(&rule.interface))
    }
}
