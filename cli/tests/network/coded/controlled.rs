//! The path over a tunnel under a controller, which makes it of the tunnel's device at both nodes.

use super::rig::{FLOW_NAME, Rig, TIMEOUT};
use hawser_model::resource::Event;
use hawser_model::status::{FlowPath, Usage};
use hawser_testbed::traffic::{Family, Kind};
use hawser_testing::Control;
use std::thread;
use std::time::{Duration, Instant};

/// The path over the tunnel between the edges, in the order of their names.
const ENDS: &str = "tunnel hawser-tun 10.77.0.1 to tunnel hawser-tun 10.77.0.50";

#[test]
fn the_controller_makes_a_path_of_a_tunnel_and_names_it() {
    let (mut rig, control) = Rig::controlled();
    let path = await_coded(&control);
    let ends = [&path.egress, &path.ingress].map(|end| end.as_ref().unwrap().uplink().to_string());
    assert_eq!(ends.join(" to "), ENDS);
    let found = await_event(&control, "path_found", 0);
    assert!(found.message.contains(ENDS), "{found:?}");
    let topology = control.ask(async |client| client.topology(None, None).await);
    let paths = topology.unwrap().paths.into_iter();
    let tunnels = paths.filter(|path| path.ends.iter().all(|end| end.end.tunnel));
    let numbers: Vec<_> = tunnels.map(|path| path.number).collect();
    assert_eq!(numbers, [path.number]);

    rig.await_assigned(path.number);
    rig.loses_none(Kind::UdpConnected, Family::Ipv4);
    rig.bring_copies(&[path.number]);

    rig.tunnel.kill_client();
    let why = "is withdrawn: ingress has no uplink hawser-tun";
    let withdrawn = await_event(&control, "path_withdrawn", found.number);
    assert!(withdrawn.message.contains(why), "{withdrawn:?}");
    rig.loses_none(Kind::UdpConnected, Family::Ipv4);
    rig.tunnel.start_client();
    let again = await_event(&control, "path_found", withdrawn.number);
    assert!(again.message.contains(ENDS), "{again:?}");
    await_coded(&control);
}

/// Waits until the flow takes a path over a tunnel.
fn await_coded(control: &Control) -> FlowPath {
    let flow = FLOW_NAME.parse().unwrap();
    wait("a path over the tunnel", || {
        let status = control.ask(async |client| client.flow_status(&flow).await);
        let mut paths = status.ok()?.paths.into_iter();
        paths.find(|path| {
            let ends = [&path.ingress, &path.egress];
            path.usage == Usage::Taken
                && ends
                    .iter()
                    .all(|end| end.as_ref().is_some_and(|end| end.tunnel))
        })
    })
}

/// Waits for an event of this kind about the tunnel's device after that number.
fn await_event(control: &Control, kind: &str, after: u64) -> Event {
    wait(kind, || {
        let mut events = control.events().ok()?.into_iter();
        events.find(|event| {
            event.kind == kind && event.message.contains("hawser-tun") && event.number > after
        })
    })
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
