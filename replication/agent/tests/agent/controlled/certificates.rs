//! A node renews its certificate before the certificate expires, and says which authorities it trusts.

use super::rig::{Controlled, state};
use crate::support::{hawser, wait};
use hawser_client::{Controller, Error, Identity, NodeClient};
use hawser_model::node::Report;
use hawser_model::resource::Mode;
use hawser_testbed::edges::Controller as _;
use hawser_testbed::topology::Edge;
use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

const LIFETIME: Duration = Duration::from_secs(20);

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    controlled.kill_controller();
    let file = controlled.rig.file("controller.toml");
    let days = LIFETIME.as_secs_f64() / Duration::from_secs(24 * 3600).as_secs_f64();
    let configuration =
        fs::read_to_string(&file).unwrap() + &format!("certificate_days = {days:.9}\n");
    fs::write(&file, configuration).unwrap();
    controlled.start_controller_again();

    let folder = controlled.rig.file("identity").join("ingress");
    controlled.control.enrol("ingress", &folder).unwrap();
    let first = Identity::load(&folder).unwrap();
    let newer = || {
        Identity::load(&folder)
            .ok()
            .filter(|identity| identity.expires() > first.expires())
    };
    let second = wait("a new certificate", newer);
    let now = SystemTime::now();
    assert!(
        (first.renew_at()..first.expires()).contains(&now),
        "{first:?} was renewed at {now:?}"
    );
    let agent = &mut controlled.rig.edges.ingress_agent;
    let status = agent
        .wait_until("was connected", |status| state(status) == "connected")
        .unwrap();
    let since_unix_ms = status.controller.unwrap().since_unix_ms;

    // A certificate is valid up to and including the second of its `notAfter` time (RFC 5280,
    // section 4.1.2.5).
    let end = first.expires() + Duration::from_secs(1);
    wait("the expiry of the first certificate", || {
        (SystemTime::now() >= end).then_some(())
    });
    let controller: Controller = controlled.control.url(Edge::Ingress).parse().unwrap();
    let report = |identity: &Identity| {
        let client = NodeClient::new(std::slice::from_ref(&controller), identity).unwrap();
        controlled
            .control
            .ask(async |_| client.report(&Report::default()).await)
    };
    let error = report(&first).unwrap_err().downcast::<Error>().unwrap();
    assert_eq!(error.status(), Some(401), "{error}");
    assert!(error.to_string().contains("has expired"), "{error}");
    report(&second).unwrap();

    // The agent has changed its certificate without becoming unreachable.
    controlled.fix(0b1);
    controlled.await_code(0b1);
    let status = controlled.rig.edges.ingress().unwrap().controller.unwrap();
    assert_eq!(
        (status.state.as_str(), status.since_unix_ms),
        ("connected", since_unix_ms),
        "{status:?}"
    );
}

#[test]
fn a_node_says_that_it_trusts_the_next_authority() {
    let mut controlled = Controlled::new();
    controlled.await_connection();
    let trusted = |controlled: &Controlled| {
        let ingress = "ingress".parse().unwrap();
        let node = controlled
            .control
            .ask(async |client| client.node(&ingress).await);
        node.map_or(0, |node| node.authorities.len())
    };
    wait("one authority", || {
        (trusted(&controlled) == 1).then_some(())
    });
    controlled.kill_controller();
    let rotated = Command::new(hawser())
        .args(["controller", "--rotate-authority", "add", "--config"])
        .arg(controlled.rig.file("controller.toml"))
        .output()
        .unwrap();
    assert!(rotated.status.success(), "{rotated:?}");
    controlled.start_controller_again();
    wait("both authorities", || {
        (trusted(&controlled) == 2).then_some(())
    });
    let next = controlled
        .control
        .ask(async |client| client.authorities().await)
        .unwrap();
    assert_eq!(next.authorities.len(), 2);
}
