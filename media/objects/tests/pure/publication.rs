//! A publication and its viewers over emulated links, in virtual time.

use crate::support;

use hawser_congestion::{DepartureFinding, Prague, PragueConfig, Refusals};
use hawser_netem::{Delay, Discipline, DualPi2, Link, LinkConfig, Packet, Rate};
use hawser_objects::{
    EncodedLayer, EncodedSlice, Encodings, EndReason, FlowConfig, FrameAssembler, FrameConfig,
    HostError, LayerContent, Outgoing, PacketiseError, Publication, PublicationConfig,
    PublicationEvent, ReceivedFrame, Seed, Viewer, ViewerConfig, ViewerEvent,
};
use hawser_packets::feedback::Pose;
use hawser_packets::media;
use hawser_packets::session::Goodbye;
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use support::{ALIAS, announcement, ms, secret};

const INTERVAL: Duration = Duration::from_micros(33_333);
const STEP: Duration = Duration::from_micros(50);

/// A viewer behind a link of its own.
struct Watcher {
    address: SocketAddr,
    viewer: Viewer,
    assembler: FrameAssembler,
    there: Link<(Vec<u8>, Ecn)>,
    back: Link<Vec<u8>>,
    layers: u8,
    /// The length of the longest datagram that its path carries.
    carries: usize,
    frames: Vec<ReceivedFrame>,
    has_ended: bool,
    /// The numbers of the hop keys of the packets that it has got.
    hops: BTreeSet<u16>,
}

impl Watcher {
    fn new(port: u16, mbps: f64) -> Self {
        let there = LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(mbps))),
            discipline: Some(Discipline::DualPi2(DualPi2::default())),
            delay: Delay::Constant(ms(10)),
            ..LinkConfig::default()
        };
        let back = LinkConfig {
            delay: Delay::Constant(ms(10)),
            ..LinkConfig::default()
        };
        let random = [port as u8; 16];
        Watcher {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            viewer: Viewer::new(ViewerConfig::default(), secret(), random),
            assembler: FrameAssembler::new(FrameConfig {
                selected: [(ALIAS, 2)].into(),
                encodings: Encodings::default(),
                lifetime: ms(150),
            }),
            there: Link::new(there, 1, Instant::ZERO).marking_by(|packet| packet.1 = Ecn::Ce),
            back: Link::new(back, 1, Instant::ZERO),
            layers: 2,
            carries: usize::MAX,
            frames: Vec::new(),
            has_ended: false,
            hops: BTreeSet::new(),
        }
    }

    fn run(&mut self, now: Instant) {
        while let Some((_, (datagram, ecn))) = self.there.pop(now) {
            self.hops
                .extend(media::Packet::parse(&datagram).map(|packet| packet.hop));
            let _ = self.viewer.handle_datagram(now, &datagram, ecn);
        }
        if self.viewer.poll_timeout().is_some_and(|due| due <= now) {
            self.viewer.handle_timeout(now);
        }
        while let Some(event) = self.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(_) => self.viewer.subscribe(now, vec![(ALIAS, self.layers)]),
                ViewerEvent::Ended(_) => self.has_ended = true,
            }
        }
        while let Some(event) = self.viewer.poll_media() {
            self.assembler.handle_event(now, event);
        }
        self.assembler.handle_timeout(now);
        self.frames
            .extend(std::iter::from_fn(|| self.assembler.poll_frame()));
        while let Some(message) = self.viewer.poll_transmit(now) {
            let size = ByteSize(message.len() as u64);
            self.back.push(now, size, message);
        }
    }
}

fn layer(number: u8, bytes: &[u8]) -> EncodedLayer<'_> {
    EncodedLayer {
        alias: ALIAS,
        layer: number,
        content: LayerContent::Whole(bytes),
    }
}

fn slice(layer: EncodedLayer<'_>, ends_layer: bool) -> EncodedSlice<'_> {
    EncodedSlice {
        layer,
        ends_layer,
        is_top: layer.layer == 1,
    }
}

/// The number of slices of a refinement.
const SLICES: u32 = 4;

struct World {
    now: Instant,
    publication: Publication,
    watchers: Vec<Watcher>,
    next_capture: Instant,
    published: u32,
    events: Vec<PublicationEvent>,
    refused: Vec<HostError>,
    /// The factor by which frames are larger than the target.
    excess: usize,
    /// The time that the refinement takes to encode.
    encoding: Duration,
    /// The slices of a refinement that is being encoded, and when each is.
    refinement: VecDeque<(Instant, Vec<u8>)>,
    /// Whether the kernel follows departure times, and the packets that it holds.
    follows: bool,
    held: BTreeMap<(Instant, usize), Outgoing>,
}

impl World {
    fn new(mbps: &[f64]) -> Self {
        let config = PublicationConfig {
            announcement: announcement(2),
            lifetime: ms(150),
            flow: FlowConfig {
                departure_times: true,
                ..FlowConfig::new(ByteSize(1_300_000))
            },
            viewers: 8,
            hop_salt: [0x33; 16],
            seed: Seed::new([0x44; 32]),
        };
        let control = |now| Box::new(Prague::new(PragueConfig::default(), now)) as _;
        let watchers = (1u16..).zip(mbps);
        World {
            now: Instant::ZERO + ms(1000),
            publication: Publication::new(config, &secret(), Box::new(control)).unwrap(),
            watchers: watchers
                .map(|(port, mbps)| Watcher::new(port, *mbps))
                .collect(),
            next_capture: Instant::ZERO + ms(1000),
            published: 0,
            events: Vec::new(),
            refused: Vec::new(),
            excess: 1,
            encoding: Duration::ZERO,
            refinement: VecDeque::new(),
            follows: false,
            held: BTreeMap::new(),
        }
    }

    fn target(&self) -> Option<Bitrate> {
        self.publication.target(self.now)
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now += STEP;
            self.refine();
            self.capture();
            self.transmit();
            for watcher in &mut self.watchers {
                watcher.run(self.now);
            }
            self.publication.handle_timeout(self.now);
            self.receive();
            self.events
                .extend(std::iter::from_fn(|| self.publication.poll_event()));
        }
    }

    /// Publishes a frame of which the base has a quarter.
    fn capture(&mut self) {
        let Some(target) = self.target() else {
            return;
        };
        if self.now < self.next_capture {
            return;
        }
        self.next_capture = self.now + INTERVAL;
        let bytes = target.bytes_in(INTERVAL).0 as usize * 9 / 10 * self.excess;
        let contents = [vec![0; bytes / 4], vec![1; bytes * 3 / 4]];
        let layers = [0, 1].map(|number| layer(number, &contents[usize::from(number)]));
        if !self.encoding.is_zero() {
            self.publication.begin_frame(self.now, self.now);
            let base = slice(layers[0], true);
            self.publication.publish_slice(self.now, &base).unwrap();
            let [_, bytes] = &contents;
            let pieces = bytes.chunks(bytes.len().div_ceil(SLICES as usize));
            for (at, piece) in (1..).zip(pieces) {
                let done = self.now + self.encoding * at / SLICES;
                self.refinement.push_back((done, piece.to_vec()));
            }
            return;
        }
        let published = self.publication.publish(self.now, self.now, &layers);
        assert_eq!(published.unwrap().group, self.published);
        self.published += 1;
    }

    /// Publishes the slices of a refinement, once they are encoded.
    fn refine(&mut self) {
        let now = self.now;
        while self.refinement.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, bytes)) = self.refinement.pop_front() else {
                return;
            };
            let is_last = self.refinement.is_empty();
            let slice = slice(layer(1, &bytes), is_last);
            self.publication.publish_slice(now, &slice).unwrap();
            if is_last {
                self.publication.end_frame(now);
                self.published += 1;
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(outgoing) = self.publication.poll_transmit(self.now) {
            let at = outgoing.at.filter(|_| self.follows).unwrap_or(self.now);
            self.held.insert((at, self.held.len()), outgoing);
        }
        let later = self
            .held
            .split_off(&(self.now + Duration::from_nanos(1), 0));
        for outgoing in std::mem::replace(&mut self.held, later).into_values() {
            self.leave(outgoing);
        }
    }

    fn leave(&mut self, outgoing: Outgoing) {
        let Outgoing { to, ecn, .. } = outgoing;
        if let Some(planned) = outgoing.at.filter(|_| outgoing.is_stamped) {
            self.publication
                .handle_left(self.now, to, planned, self.now);
        }
        // Nothing reaches one that has vanished.
        let watcher = self.watchers.iter_mut().find(|w| w.address == to);
        if let Some(watcher) = watcher.filter(|w| outgoing.datagram.len() <= w.carries) {
            let packet = Packet {
                size: ByteSize(outgoing.datagram.len() as u64 + 28),
                ecn,
                flow: 1,
                payload: (outgoing.datagram.to_vec(), ecn),
            };
            watcher.there.push_packet(self.now, packet);
        }
    }

    fn receive(&mut self) {
        for watcher in &mut self.watchers {
            while let Some((_, message)) = watcher.back.pop(self.now) {
                let taken = self
                    .publication
                    .handle_datagram(self.now, watcher.address, &message);
                self.refused.extend(taken.err());
            }
        }
    }
}

#[test]
fn a_viewer_gets_whole_frames_and_a_status_of_the_path() {
    let mut world = World::new(&[60.0]);
    world.run(Duration::from_secs(10));

    let frames = &world.watchers[0].frames;
    assert!(
        frames.len() + 2 >= world.published as usize,
        "{}",
        frames.len()
    );
    let whole = frames.iter().filter(|frame| frame.is_whole).count();
    assert!(
        whole * 100 >= frames.len() * 98,
        "{whole} of {}",
        frames.len()
    );
    let groups = frames.iter().map(|frame| frame.id.0);
    assert!(groups.is_sorted());

    let status = world.publication.status();
    let target = status[0].target.mbps();
    assert!((45.0..60.0).contains(&target), "{target}");
    let one_way = status[0].one_way.unwrap();
    assert!(one_way >= ms(9) && one_way < ms(16), "{one_way:?}");
    assert!(status[0].received.ce_bytes > 0 && status[0].sender.refused_reports == 0);
    assert_eq!(status[0].sender.refused_no_room, 0);
    assert_eq!(world.refused, []);
}

#[test]
fn a_pacing_kernel_is_detected_and_used_until_it_stops() {
    let findings = |world: &mut World| -> Vec<DepartureFinding> {
        let events = std::mem::take(&mut world.events).into_iter();
        let findings = events.filter_map(|event| match event {
            PublicationEvent::Paced { finding, .. } => Some(finding),
            _ => None,
        });
        findings.collect()
    };
    let received_bytes = |follows: bool| {
        let mut world = World::new(&[60.0]);
        world.follows = follows;
        world.run(Duration::from_secs(1));
        let expected = if follows {
            DepartureFinding::Followed
        } else {
            DepartureFinding::Early
        };
        assert_eq!(findings(&mut world), [expected]);
        world.run(Duration::from_secs(9));
        let status = world.publication.status()[0];
        assert_eq!(status.is_kernel_paced, follows);
        assert_eq!(status.refusals, Refusals::default());
        let frames = &world.watchers[0].frames;
        let whole = frames.iter().filter(|frame| frame.is_whole).count();
        assert!(whole * 100 >= frames.len() * 98);

        world.follows = false;
        world.run(Duration::from_secs(1));
        let expected = follows.then_some(DepartureFinding::Early);
        assert_eq!(findings(&mut world), Vec::from_iter(expected));
        assert!(!world.publication.status()[0].is_kernel_paced);
        status.received.bytes
    };
    let (paced, held) = (received_bytes(false), received_bytes(true));
    let ratio = held as f64 / paced as f64;
    assert!((0.98..1.02).contains(&ratio), "{held} of {paced}");
}

#[test]
fn a_base_arrives_while_its_refinement_is_encoded() {
    let mut world = World::new(&[50.0]);
    world.encoding = ms(25);
    world.run(ms(3000));
    let watcher = &world.watchers[0];
    let published = world.published as usize;
    assert!(published > 80, "{published}");
    let whole = watcher.frames.iter().filter(|frame| frame.is_whole);
    assert!(
        whole.count() + 3 > published,
        "{} frames of {published}",
        watcher.frames.len()
    );
    // The base of the frame that was begun last has left.
    while world.refinement.is_empty() {
        world.run(STEP);
    }
    let sent = |world: &World| world.publication.status()[0].sender.packets;
    let before = sent(&world);
    world.run(ms(10));
    assert!(!world.refinement.is_empty() && sent(&world) > before);
    // Under another secret, nothing of that frame is sent.
    let mut next = World::new(&[]).publication;
    let published = next.publish_slice(world.now, &slice(layer(1, &[0; 100]), true));
    assert!(published.is_ok());
    next.end_frame(world.now);
    assert!(next.poll_transmit(world.now).is_none());
}

#[test]
fn slices_of_a_layer_leave_while_the_rest_of_it_is_encoded() {
    let mut world = World::new(&[50.0]);
    world.encoding = ms(24);
    world.run(ms(3000));
    let mut completed = Vec::new();
    for frame in &world.watchers[0].frames {
        assert!(frame.is_whole, "{frame:?}");
        completed.push(
            frame
                .completed
                .saturating_since(frame.first_arrival.unwrap()),
        );
    }
    // If the refinement left after it was encoded, a frame at 45 Mb/s took 24 ms and 22 ms.
    completed.sort_unstable();
    let median = completed[completed.len() / 2];
    assert!(median < ms(34), "{median:?}");
}

#[test]
fn a_frame_that_does_not_end_delays_no_later_one() {
    let mut world = World::new(&[50.0]);
    world.run(ms(1000));
    let now = world.now;
    world.publication.begin_frame(now, now);
    let begun = slice(layer(0, &[0; 5000]), false);
    world.publication.publish_slice(now, &begun).unwrap();
    world.published += 1;
    world.run(ms(1000));
    let frames = &world.watchers[0].frames;
    assert!(
        frames.len() + 3 >= world.published as usize,
        "{}",
        frames.len()
    );
    assert!(frames.iter().rev().take(20).all(|frame| frame.is_whole));
}

#[test]
fn a_slow_viewer_gets_bases_and_costs_a_fast_one_nothing() {
    let mut world = World::new(&[80.0, 20.0]);
    world.run(Duration::from_secs(12));
    let published = world.published as usize;
    let share = |watcher: &Watcher, is_whole: bool| {
        let frames = watcher.frames.iter().skip(published / 2);
        frames.filter(|frame| frame.is_whole == is_whole).count() as f64 / (published / 2) as f64
    };
    let [fast, slow] = &world.watchers[..] else {
        panic!("two viewers");
    };
    assert!(share(fast, true) > 0.97, "{}", share(fast, true));
    let decodable = share(slow, true) + share(slow, false);
    assert!(decodable > 0.9, "{decodable}");
    assert!(share(slow, false) > share(slow, true));
}

#[test]
fn the_rate_follows_viewers_of_bases_but_not_of_nothing() {
    let mut world = World::new(&[40.0]);
    world.watchers[0].layers = 1;
    world.run(Duration::from_secs(10));
    let status = world.publication.status();
    assert!(status[0].target.mbps() > 28.0, "{}", status[0].target);
    assert!(world.target().unwrap().mbps() > 100.0);

    let mut world = World::new(&[40.0]);
    world.watchers[0].layers = 0;
    world.run(ms(500));
    assert_eq!((world.publication.viewers(), world.target()), (0, None));
}

#[test]
fn packets_fit_the_narrowest_path_while_its_viewer_is_there() {
    for carries in [1192, 1052, 700] {
        let mut world = World::new(&[6.0, 20.0]);
        world.watchers[1].carries = carries;
        // The faster viewer gets all layers, once they fit its path.
        let is_whole = |watcher: &Watcher| {
            let newest = watcher.frames.iter().rev().take(25);
            newest.filter(|frame| frame.is_whole).count() == 25
        };
        while !is_whole(&world.watchers[1]) {
            assert!(
                world.now < Instant::ZERO + Duration::from_secs(60),
                "{carries}"
            );
            world.run(ms(500));
        }
        let shortened = world.publication.datagram();
        assert!(shortened <= carries, "{carries}: {shortened}");
        world.watchers[1].viewer.close(Goodbye::Ended);
        world.run(ms(100));
        assert_eq!(world.publication.datagram(), 1200);
    }
}

#[test]
fn fewer_selected_layers_leave_the_path_to_other_flows() {
    let mut world = World::new(&[40.0]);
    world.run(Duration::from_secs(5));
    let now = world.now;
    world.watchers[0].viewer.subscribe(now, vec![(ALIAS, 1)]);
    world.run(Duration::from_secs(5));
    // So the base, a quarter, takes a quarter of the path.
    let target = world.target().unwrap().mbps();
    assert!(target <= 40.0, "{target}");
}

#[test]
fn a_backlog_leaves_and_does_not_delay_every_frame() {
    let mut world = World::new(&[60.0]);
    world.run(Duration::from_secs(5));
    // Frames three times as large as they should be for a moment.
    world.excess = 3;
    world.run(ms(100));
    world.excess = 1;
    let target = world.target().unwrap().mbps();
    let control = world.publication.status()[0].target.mbps();
    assert!(target < 0.8 * control, "{target} of {control}");
    world.run(ms(500));
    let before = world.watchers[0].frames.len();
    world.run(ms(1000));
    let frames = &world.watchers[0].frames[before..];
    let whole = frames.iter().filter(|frame| frame.is_whole).count();
    assert!(whole + 1 >= frames.len(), "{whole} of {}", frames.len());
    for frame in frames {
        let took = frame
            .completed
            .saturating_since(frame.first_arrival.unwrap());
        assert!(took < ms(45), "{took:?}");
    }
}

#[test]
fn a_vanished_viewer_lowers_the_rate_only_for_a_moment() {
    let mut world = World::new(&[100.0, 100.0]);
    world.run(Duration::from_secs(5));
    let before = world.target().unwrap().mbps();
    // Without a goodbye.
    world.watchers.pop();
    world.run(ms(600));
    let after = world.target().unwrap().mbps();
    assert_eq!(world.publication.viewers(), 2, "its session is still there");
    assert!(after > 0.9 * before, "{after} of {before}");
    world.watchers.pop();
    world.run(Duration::from_secs(1));
    assert!(
        world.target().unwrap().mbps() < 0.5 * before,
        "the path of the only one may have failed"
    );
}

#[test]
fn the_pose_is_that_of_the_only_viewer() {
    let pose = Pose::new([1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0]).unwrap();
    let mut world = World::new(&[100.0, 100.0]);
    let second = world.watchers.pop().unwrap();
    world.watchers[0].viewer.set_pose(Some(pose));
    world.run(ms(200));
    assert_eq!(world.publication.pose(), Some(pose));
    world.watchers.push(second);
    world.run(ms(200));
    assert_eq!(
        (world.publication.viewers(), world.publication.pose()),
        (2, None)
    );
}

#[test]
fn viewers_learn_that_the_publisher_leaves_and_it_that_they_do() {
    let mut world = World::new(&[100.0, 100.0]);
    world.run(ms(500));
    let joined = |event: &&PublicationEvent| matches!(event, PublicationEvent::Joined { .. });
    assert_eq!(world.events.iter().filter(joined).count(), 2);
    world.watchers[0].viewer.close(Goodbye::Ended);
    world.run(ms(100));
    let left = |event: &&PublicationEvent| matches!(event, PublicationEvent::Left { .. });
    assert_eq!(world.events.iter().filter(left).count(), 1);
    assert_eq!(world.publication.viewers(), 1);
    world.publication.close(Goodbye::Restarting);
    world.run(ms(100));
    assert!(world.watchers[1].has_ended);
    assert_eq!(world.target(), None);
}

#[test]
fn hop_keys_change_while_packets_are_on_their_way() {
    let mut world = World::new(&[50.0, 30.0]);
    world.encoding = ms(25);
    let mut late = world.watchers.pop();
    for change in 0..6 {
        world.run(ms(500));
        world.publication.rotate_hop_key();
        if change == 2 {
            world.watchers.extend(late.take());
        }
    }
    world.run(ms(500));
    for watcher in &world.watchers {
        let refusals = watcher.viewer.receiver().unwrap().refusals();
        assert_eq!(refusals.hop_tag, 0);
    }
    let hops = [0..=6, 3..=6].map(|numbers| numbers.collect::<BTreeSet<u16>>());
    assert!(world.watchers.iter().map(|watcher| &watcher.hops).eq(&hops));
    let frames = world.watchers.iter().map(|watcher| watcher.frames.len());
    let [first, second] = frames.collect::<Vec<_>>()[..] else {
        panic!("two viewers");
    };
    let published = world.published as usize;
    assert!(
        first + 5 >= published && second + 5 >= published / 2,
        "{first}, {second} of {published}"
    );
}

#[test]
fn a_viewer_without_selection_learns_that_the_publisher_left() {
    let mut publication = World::new(&[]).publication;
    let mut viewer = support::viewer(ViewerConfig::default());
    let now = Instant::ZERO + ms(1000);
    let mut exchange = |publication: &mut Publication| {
        while let Some(message) = viewer.poll_transmit(now) {
            publication
                .handle_datagram(now, support::viewer_address(), &message)
                .unwrap();
        }
        while let Some(outgoing) = publication.poll_transmit(now) {
            let _ = viewer.handle_datagram(now, &outgoing.datagram, outgoing.ecn);
        }
        viewer.poll_event()
    };
    exchange(&mut publication);
    let opened = exchange(&mut publication);
    assert!(matches!(opened, Some(ViewerEvent::Opened(_))));
    assert_eq!(exchange(&mut publication), None);
    publication.close(Goodbye::Restarting);
    let reason = EndReason::Left(Goodbye::Restarting);
    let ended = Some(ViewerEvent::Ended(reason));
    assert_eq!(exchange(&mut publication), ended);
}

/// Returns what leaves now.
fn leaving(world: &mut World) -> Vec<Outgoing> {
    let now = world.now;
    std::iter::from_fn(|| world.publication.poll_transmit(now)).collect()
}

/// Returns a request for a session, as one on the path can capture it.
fn captured_hello() -> Vec<u8> {
    let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [0x77; 16]);
    viewer.poll_transmit(Instant::ZERO + ms(1000)).unwrap()
}

/// Publishes a frame while captured requests come from an address for each number. Returns the outgoing datagrams.
fn leaving_in_a_flood(world: &mut World, from: impl Fn(u16) -> SocketAddr) -> Vec<Outgoing> {
    let hello = captured_hello();
    for number in 0..60_000 {
        let taken = world
            .publication
            .handle_datagram(world.now, from(number), &hello);
        assert!(matches!(taken, Ok(()) | Err(HostError::TooManyRequests)));
    }
    world.now += ms(40);
    let contents = [0; 4000];
    let layers = [0, 1].map(|number| layer(number, &contents));
    let now = world.now;
    world.publication.publish(now, now, &layers).unwrap();
    leaving(world)
}

#[test]
fn media_leaves_before_answers_to_captured_requests() {
    let one_source = |port| SocketAddr::from(([198, 51, 100, 1], port));
    let many_sources = |number: u16| {
        let [high, low] = number.to_be_bytes();
        SocketAddr::from(([198, 51, high, low], 9))
    };
    let sources: [&dyn Fn(u16) -> SocketAddr; 2] = [&one_source, &many_sources];
    for from in sources {
        let mut world = World::new(&[60.0]);
        world.run(Duration::from_secs(2));
        let _ = leaving(&mut world);
        let left = leaving_in_a_flood(&mut world, from);
        let viewer = world.watchers[0].address;
        let is_of_viewer = |outgoing: &Outgoing| outgoing.to == viewer;
        let media = left
            .iter()
            .filter(|outgoing| is_of_viewer(outgoing))
            .count();
        assert!(media > 0, "the frame leaves");
        assert!(left[..media].iter().all(is_of_viewer), "and leaves first");
        let answers: usize = left[media..].iter().map(|o| o.datagram.len()).sum();
        assert!(
            answers > 0 && answers <= 1 << 20,
            "{answers} bytes of answers"
        );
        let stats = world.publication.host_stats();
        assert!(stats.too_many_requests > 40_000, "{stats:?}");
        assert_eq!(
            stats.not_sent + (left.len() - media) as u64,
            stats.retries - 1
        );
    }
}

#[test]
fn the_share_of_a_source_is_its_own() {
    let mut world = World::new(&[]);
    let flooding = |port| SocketAddr::from(([198, 51, 100, 1], port));
    leaving_in_a_flood(&mut world, flooding);
    let hello = captured_hello();
    let others = (1..=20u8).map(|host| SocketAddr::from(([203, 0, 113, host], 9)));
    let now = world.now;
    let answered = others.filter(|other| {
        let taken = world.publication.handle_datagram(now, *other, &hello);
        let left = world.publication.poll_transmit(now);
        taken.is_ok() && left.is_some_and(|outgoing| outgoing.to == *other)
    });
    assert!(answered.count() >= 18);
}

#[test]
fn tracks_and_layers_that_do_not_exist_are_not_kept() {
    let mut world = World::new(&[60.0]);
    world.run(ms(500));
    let watcher = &mut world.watchers[0];
    for first in (100..100_000u32).step_by(1000) {
        let unknown = (first..first + 15).map(|alias| (alias, 1));
        let known = [(ALIAS, u8::MAX)];
        let now = world.now;
        watcher
            .viewer
            .subscribe(now, unknown.chain(known).collect());
        while let Some(message) = watcher.viewer.poll_transmit(now) {
            let _ = world
                .publication
                .handle_datagram(now, watcher.address, &message);
        }
    }
    let debug = format!("{:?}", world.publication);
    let selected = debug.split("selected: {").nth(1).unwrap();
    assert!(
        selected.starts_with(&format!("{ALIAS}: 2}}")),
        "{selected:.60}"
    );
    let most = debug.split("most: {").nth(1).unwrap();
    assert!(most.starts_with(&format!("{ALIAS}: 2}}")), "{most:.60}");
}

#[test]
fn layers_out_of_order_or_of_no_track_are_refused() {
    let mut world = World::new(&[]);
    let layer = |alias, layer| EncodedLayer {
        alias,
        layer,
        content: LayerContent::Whole(&[1]),
    };
    let now = world.now;
    let unknown = world.publication.publish(now, now, &[layer(99, 0)]);
    assert!(matches!(unknown, Err(PacketiseError::Unknown(_))));
    let layers = [layer(ALIAS, 1), layer(ALIAS, 0)];
    let disordered = world.publication.publish(now, now, &layers);
    assert_eq!(disordered, Err(PacketiseError::OutOfOrder));
    let chunk = vec![0; 1200];
    let chunks = [&chunk[..]];
    let long = EncodedLayer {
        content: LayerContent::Chunks(&chunks),
        ..layer(ALIAS, 0)
    };
    let too_long = world.publication.publish(now, now, &[long]);
    assert_eq!(too_long, Err(PacketiseError::Chunk(1200)));
}
