//! The viewer's page in a browser.

use crate::end;
use crate::machines::{Machines, SetOnDrop};
use hawser_recording::Recording;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const PAGE: &str = "127.0.0.1:14780";

/// The person who talks, or the performer where there are no recordings.
fn recording() -> Option<Recording> {
    let data = hawser_recording::data_dir();
    if !data.join("volumetric").exists() {
        eprintln!("without recordings, which $HAWSER_DATA names");
        return None;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/examples");
    Some(Recording::read(&examples.join("talker-front.toml"), &data).unwrap())
}

#[test]
fn a_browser_shows_a_person_who_moves() {
    let machines = Machines::create("page", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish_recording(scope, recording(), &stop);
        let relay = machines.relay_web(PAGE);
        machines.wait_for_status(0, |status| status.broadcasts[0].is_open);
        let key = fs::read_to_string(machines.path("media.key")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/viewer/tests/watch.js");
        let mut watch = machines.relays[0].command("node").unwrap();
        let watch = watch
            .arg(script)
            .arg(format!("http://{PAGE}/#key={}", key.trim()))
            .arg(machines.path("."));
        let watched = watch.output().expect("node");
        println!("{}", String::from_utf8_lossy(&watched.stdout));
        let errors = String::from_utf8_lossy(&watched.stderr);
        assert!(watched.status.success(), "{errors}");
        stop.store(true, Relaxed);
        end(relay);
    });
}
