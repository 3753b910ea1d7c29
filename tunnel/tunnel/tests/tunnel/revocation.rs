//! Clients that a server without a controller does not admit any more, without a restart.

use crate::rig::{End, Rig};
use hawser_tls::Subject;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;

/// A server and its file.
struct Reloaded<'a> {
    rig: &'a Rig,
    end: End,
    file: String,
}

impl Reloaded<'_> {
    fn start(rig: &Rig) -> Reloaded<'_> {
        let end = rig.server(0, "", "");
        let file = fs::read_to_string(rig.path("one.toml")).unwrap();
        Reloaded { rig, end, file }
    }

    /// Changes the file to the first one with additional lines in `[tunnel]` and additional
    /// sections, and sends SIGHUP.
    fn reload(&self, more: &str, sections: &str) {
        let file = self
            .file
            .replacen("[tunnel]\n", &format!("[tunnel]\n{more}\n"), 1);
        // In one step, because the server may read the file at any time.
        fs::write(self.rig.path("next.toml"), file + sections).unwrap();
        fs::rename(self.rig.path("next.toml"), self.rig.path("one.toml")).unwrap();
        let pid = Pid::from_raw(self.end.process.id().try_into().unwrap());
        kill(pid, Signal::SIGHUP).unwrap();
    }

    fn wait_until_ended(&self, client: &str) {
        self.end.until("the session has ended", |status| {
            status.sessions.iter().all(|session| session.peer != client)
        });
    }

    fn wait_until_served(&self, client: &str) {
        self.end.until("there is a session", |status| {
            status.sessions.iter().any(|session| session.peer == client)
        });
    }

    /// Returns the start of a client's session, in milliseconds since 1970.
    fn since(&self, client: &str) -> u64 {
        self.wait_until_served(client);
        let status = self.end.until("a status", |_| true);
        let mut sessions = status.sessions.iter();
        let session = sessions.find(|session| session.peer == client);
        session.expect("a session").since_unix_ms
    }
}

#[test]
fn only_revoked_clients_are_disconnected_at_sighup() {
    let rig = Rig::new();
    let server = Reloaded::start(&rig);
    let _car = rig.client("");
    let _bus = rig.start_client("bus", "interface = \"bus-tun\"");
    server.wait_until_served("bus");
    let bus = server.since("bus");

    server.reload("revoked_clients = [\"car\"]", "");
    server.wait_until_ended("car");
    server.end.wait_until_counted("connection_revoked", 1);
    server.end.wait_until_counted("connection_not_admitted", 1);
    server.reload("", "[[client]]\nname = \"bus\"\n");
    server.wait_until_served("car");

    server.reload("admit_unlisted = false", "[[client]]\nname = \"bus\"\n");
    server.wait_until_ended("car");
    server.end.wait_until_counted("connection_revoked", 2);
    assert_eq!(server.since("bus"), bus, "the other session continues");
}

#[test]
fn a_client_comes_back_with_another_certificate() {
    let rig = Rig::new();
    let server = Reloaded::start(&rig);
    let _client = rig.client("");
    let paths = |count: usize| {
        server.end.until("the session has so many paths", |status| {
            let mut sessions = status.sessions.iter();
            sessions.any(|session| session.peer == "car" && session.paths.len() == count)
        });
    };
    paths(2);
    let stolen = CertificateDer::from_pem_file(rig.path("car.pem")).unwrap();
    let serial = Subject::of(&stolen).unwrap().serial.to_uppercase();

    server.reload(&format!("revoked_certificates = [\"{serial}\"]"), "");
    server.end.wait_until_counted("connection_revoked", 2);
    server.end.wait_until_counted("connection_not_admitted", 1);
    paths(0);
    rig.authority.credentials(rig.folder.path(), "car");
    paths(2);
}

#[test]
fn a_file_that_is_not_valid_revokes_nobody() {
    let rig = Rig::new();
    let server = Reloaded::start(&rig);
    let _client = rig.client("");
    let since = server.since("car");
    server.reload("admit_unlisted = false\nrevoked_client = [\"bus\"]", "");
    let status = server.end.until("the status gives the reason", |status| {
        status.rejected_file.is_some()
    });
    let reason = status.rejected_file.unwrap();
    assert!(
        reason.contains("unknown field `revoked_client`"),
        "{reason}"
    );
    assert_eq!(server.since("car"), since);
    server.reload("revoked_clients = [\"bus\"]", "");
    server.end.until("the file is accepted", |status| {
        status.rejected_file.is_none()
    });
    assert_eq!(server.since("car"), since);
}
