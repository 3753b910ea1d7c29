//! A client of Media over QUIC at a relay.

#[path = "../../../moq/tests/support/client.rs"]
mod client;

use crate::machines::{Machines, Place, SetOnDrop};
use crate::{check_refused, count, end};
use client::{Client, Opener, Over};
use hawser_objects::TrackSecret;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const MOQ: &str = "198.51.100.1:14754";

/// Writes a token that only its owner may read.
fn write_token(file: &Path) {
    fs::write(file, "0123456789abcdef\n").unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
}

/// Takes objects until some frames have both layers.
async fn open_frames(certificate: &str, secret: &TrackSecret) {
    const FRAMES: usize = 30;
    let version = "moq-transport-22".parse().unwrap();
    let target = "/?token=0123456789abcdef";
    let address = MOQ.parse().unwrap();
    let client = Client::connect(address, certificate, Over::WebTransport, version, target);
    let client = client.await.unwrap();
    let broadcast = client.broadcast("stage").await;
    let catalog = client::catalog(&broadcast).await;
    let mut opener = Opener::new(secret, &catalog);
    for name in &catalog.tracks[0].layers {
        let mut track = client::subscribe(&broadcast, name).await;
        let before = opener.objects.len();
        while opener.objects.len() < before + FRAMES {
            opener.open(&client::next(&mut track).await.unwrap());
        }
    }
    assert!(opener.objects.values().all(|object| !object.is_empty()));
}

#[test]
fn a_moq_client_opens_what_a_relay_serves() {
    let machines = Machines::create("moq", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        write_token(&machines.path("moq.token"));
        let moq = format!("[broadcast.moq]\nlisten = \"{MOQ}\"\ntoken = \"moq.token\"\n");
        let relay = machines.relay_with(0, &moq);
        let status = machines.wait_for_status(0, |status| status.broadcasts[0].moq.is_some());
        let certificate = status.broadcasts[0]
            .moq
            .as_ref()
            .unwrap()
            .certificate_sha256
            .clone();
        let secret = hawser_io::key_file::read_media(&machines.path("media.key")).unwrap();
        let secret = TrackSecret::new(*secret);
        let watch = || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(open_frames(&certificate, &secret));
        };
        machines.viewers.run(watch).unwrap();
        stop.store(true, Relaxed);
        end(relay);
    });
}

#[test]
fn a_viewer_gets_every_frame_that_a_relay_takes_over_moq() {
    let machines = Machines::create("ingest", 2);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        write_token(&machines.path("moq.token"));
        let moq =
            "[broadcast.moq]\nlisten = \"192.0.3.1:14754\"\ntoken = \"moq.token\"\n".to_owned();
        let first = machines.relay_with(0, &moq);
        let status = machines.wait_for_status(0, |status| status.broadcasts[0].moq.is_some());
        let moq = status.broadcasts[0].moq.as_ref().unwrap();
        let from = format!(
            "[broadcast.from_moq]\nurl = \"https://192.0.3.1:14754\"\n\
             token = \"moq.token\"\ncertificate_sha256 = \"{}\"\n",
            moq.certificate_sha256
        );
        let second = machines.relay_of(1, "", &from);
        let near = machines.watch(scope, "near", Place::Near, &stop);
        let far = machines.watch(scope, "far", Place::Far, &stop);
        for viewer in ["near", "far"] {
            machines.wait_for_run(viewer, 90, |_| true);
        }
        let status = machines.wait_for_status(1, |status| {
            let from = status.broadcasts[0].from_moq.as_ref();
            from.is_some_and(|from| from.objects > 180) && status.broadcasts[0].relays == 2
        });
        stop.store(true, Relaxed);
        for viewing in [near, far] {
            let summary = viewing.join().unwrap();
            println!("{summary}");
            check_refused(&summary);
            assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
        }
        [first, second].into_iter().for_each(end);
        // The kernel of the second relay has forwarded them.
        let broadcast = &status.broadcasts[0];
        let forwarded = count(&broadcast.tracks[0].packets, "forwarded");
        let from = broadcast.from_moq.as_ref().unwrap();
        println!("{from:?} {:?}", broadcast.tracks);
        assert!(forwarded > from.packets / 2, "{status:#?}");
    });
}
