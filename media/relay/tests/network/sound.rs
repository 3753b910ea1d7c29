//! Sound through a relay.

use crate::machines::{Machines, Place, SetOnDrop};
use crate::{clap, end};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const PAGE: &str = "127.0.0.1:14780";

#[test]
fn a_clap_is_heard_when_it_is_seen() {
    let machines = Machines::create("sound", 1);
    let recording = clap::clap(&machines.path("."));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish_recording(scope, Some(recording), &stop);
        let relay = machines.relay_web(PAGE);
        let viewer = machines.watch_and_save(scope, "saved", Place::Near, &stop);
        machines.wait_for_frames("saved", 150);
        let key = fs::read_to_string(machines.path("media.key")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/viewer/tests/hear.js");
        let mut hear = machines.relays[0].command("node").unwrap();
        let hear = hear
            .arg(script)
            .arg(format!("http://{PAGE}/#key={}", key.trim()));
        let heard = hear.output().expect("node");
        println!("{}", String::from_utf8_lossy(&heard.stdout));
        stop.store(true, Relaxed);
        let summary = viewer.join().unwrap();
        println!("{summary}");
        assert!(summary.received.sound > 200, "{summary}");
        clap::check(&machines.path("saved"));
        let errors = String::from_utf8_lossy(&heard.stderr);
        assert!(heard.status.success(), "{errors}");
        end(relay);
    });
}
