//! Uplinks that come and go under a connection.

use crate::rig::{HOST4, Rig, UPLINKS};
use crate::traffic::Connection;
use std::time::Duration;

/// How long a connection inside may stand still when one of two uplinks fails.
const HICCUP: Duration = Duration::from_secs(3);

#[test]
fn each_uplink_is_cut_and_restored_under_a_connection() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    for uplink in UPLINKS {
        connection.progresses();
        rig.router.ip(&format!("link set {uplink} down")).unwrap();
        assert!(connection.progresses() < HICCUP, "{uplink} cut");
        client.until("the other uplink alone", |status| status.sessions[0].paths.len() == 1);
        rig.router.ip(&format!("link set {uplink} up")).unwrap();
        client.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    }
    assert_eq!(client.session().since_unix_ms, since, "the session is the same");
    connection.end();
}

#[test]
fn an_uplink_that_swallows_everything_is_done_without() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    for uplink in UPLINKS {
        connection.progresses();
        rig.swallow(uplink, true);
        assert!(connection.progresses() < HICCUP, "{uplink} swallows");
        rig.swallow(uplink, false);
        client.until("both uplinks answer", |status| {
            let paths = &status.sessions[0].paths;
            paths.len() == 2 && paths.iter().all(|path| path.unanswered_ms < 200)
        });
    }
    connection.end();
}

#[test]
fn an_uplink_gets_another_address() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    for (number, uplink) in UPLINKS.iter().enumerate() {
        rig.client
            .ip(&format!(
                "addr del 10.1.{number}.1/24 dev {uplink}\naddr add 10.1.{number}.77/24 dev {uplink}\n\
                 route add default via 10.1.{number}.2 dev {uplink} metric {}",
                100 + number
            ))
            .unwrap();
        let moved = format!("10.1.{number}.77");
        server.until("the path comes from the new address", |status| {
            let paths = status.sessions.iter().flat_map(|session| &session.paths);
            paths.filter_map(|path| path.remote).any(|remote| remote.ip().to_string() == moved)
        });
        assert!(connection.progresses() < HICCUP);
    }
    client.until("both uplinks", |status| status.sessions[0].paths.len() == 2);
    connection.end();
}

#[test]
fn all_uplinks_are_lost_for_a_while() {
    let rig = Rig::new();
    let _server = rig.server(0, "", "");
    let client = rig.client("");
    let connection = Connection::open(&rig.client, &rig.host, HOST4);
    let since = client.session().since_unix_ms;
    connection.progresses();
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} down")).unwrap();
    }
    client.until("no path is left", |status| status.sessions.iter().all(|session| session.paths.is_empty()));
    for uplink in UPLINKS {
        rig.router.ip(&format!("link set {uplink} up")).unwrap();
    }
    connection.progresses();
    connection.end();
    assert_eq!(client.session().since_unix_ms, since, "the session is the same");
}
