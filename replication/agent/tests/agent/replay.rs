//! Replicas that the network holds back and delivers later.

use crate::rig::{RATE_PPS, Rig, assert_losses};
use hawser_agent::Status;
use hawser_testbed::ring::Port;
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::PathId;

/// Number of replicas that are held back.
const HELD: usize = 20;

/// Least length of a replica, more than that of any other frame of the network, bytes.
const MIN_REPLICA_BYTES: usize = 200;

/// Captures replicas from path 1 while no path delivers.
fn hold_back(lab: &Lab) -> Vec<Vec<u8>> {
    let paths: Vec<PathId> = lab.paths().collect();
    let batch = |change: &dyn Fn(&PathId) -> String| {
        paths.iter().map(change).collect::<Vec<_>>().join("\n")
    };
    let cut = batch(&|path| format!("link set {} nomaster", network_egress(*path)));
    let join = batch(&|path| {
        format!(
            "link set {} master bridge{}",
            network_egress(*path),
            path.index()
        )
    });
    lab.network().ip(&cut).unwrap();
    let held = lab.network().run(|| {
        let mut port = Port::open(&network_ingress(paths[0])).unwrap();
        let mut held = Vec::new();
        while held.len() < HELD {
            port.receiver
                .receive(|frame| held.extend(frame.ok().map(|frame| frame.to_vec())));
            held.retain(|frame: &Vec<u8>| frame.len() >= MIN_REPLICA_BYTES);
        }
        held.truncate(HELD);
        held
    });
    lab.network().ip(&join).unwrap();
    held.unwrap()
}

fn deliver(lab: &Lab, path: PathId, frames: &[Vec<u8>]) {
    let send = || {
        Port::open(&network_egress(path))
            .unwrap()
            .sender
            .send(frames)
            .unwrap()
    };
    lab.network().run(send).unwrap();
}

fn of_path_1(status: &Status, count: impl Fn(&hawser_agent::status::ReceiveStatus) -> u64) -> u64 {
    status.receive.values().map(|paths| count(&paths[&1])).sum()
}

#[test]
fn delayed_replicas_are_dropped() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, lab| {
        let held = hold_back(lab);
        let before = of_path_1(&edges.egress().unwrap(), |path| path.packets);
        // Both streams have sent for longer than the maximum age of replicas.
        let passed = 2 * 3 * u64::from(RATE_PPS);
        let is_later = |status: &Status| of_path_1(status, |path| path.packets) > before + passed;
        edges
            .egress_agent
            .wait_until("saw newer copies", is_later)
            .unwrap();

        deliver(lab, lab.paths().next().unwrap(), &held);

        let dropped = |status: &Status| of_path_1(status, |path| path.expired) == HELD as u64;
        edges
            .egress_agent
            .wait_until("dropped what was held back", dropped)
            .unwrap();
    });
    assert_losses(&reports, u64::MAX, 0);
    let status = rig.edges.egress().unwrap();
    assert_eq!(
        status.not_deduplicated["dropped_expired"], HELD as u64,
        "{status:?}"
    );
}
