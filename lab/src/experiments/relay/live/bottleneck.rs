//! Viewers whose paths bear half of the stream: one for which the relay drops by priority, one behind a path that drops
//! half of the packets at random, and one behind a queue that drops what does not fit.

use super::publisher::STREAM_MBPS;
use super::{LAST_FRAMES, Scene, WARM_UP, groups_since, never, seen, seen_whole, watch};
use crate::audience::{Member, View};
use crate::bench::median;
use crate::summary::Case;
use anyhow::{Context, Result};
use hawser_io::clock;
use hawser_netem::{LinkConfig, Loss, Probability, QueueLimit, Rate};
use hawser_units::Bitrate;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The share of the stream that the paths bear.
const BORNE: f64 = 0.5;

const QUEUE: Duration = Duration::from_millis(200);

/// Measures the viewers at the same time. The relay sends all but the first one everything.
pub(super) fn bottleneck(scene: &Scene, measured: Duration, case: &mut Case) -> Result<()> {
    case.set_param("bottleneck_mbps", STREAM_MBPS * BORNE);
    let narrow = LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(STREAM_MBPS * BORNE))),
        queue: Some(QueueLimit::Time(QUEUE)),
        ..LinkConfig::default()
    };
    let random = LinkConfig {
        loss: Some(Loss::Independent(Probability::try_from(1.0 - BORNE)?)),
        ..LinkConfig::default()
    };
    let members = (0..3).map(|number| scene.member(false, number));
    let mut members = members.collect::<Result<Vec<_>>>()?;
    for (number, member) in (0..).zip(&mut members).skip(1) {
        member.see_behind(scene.secret, number);
    }
    watch(&mut members, WARM_UP, never)?;
    members[0].view.set_path(Some(narrow.clone()));
    behind(&mut members[1])?.set_path(Some(random));
    behind(&mut members[2])?.set_path(Some(narrow));
    watch(&mut members, WARM_UP, never)?;
    let from = clock::monotonic();
    let before = received(&members);
    watch(&mut members, measured, never)?;
    let after = received(&members);
    let groups = groups_since(&members[1].view, from).context("viewers saw nothing")?;
    watch(&mut members, LAST_FRAMES, never)?;
    let all = &members[1].view;
    for ((name, view), (before, after)) in views(&members)
        .into_iter()
        .zip(before.into_iter().zip(after))
    {
        let mut set = |metric: &str, figure| case.metrics.set(&format!("{name}{metric}"), figure);
        set("decodable_frames_ratio", seen(view, &groups));
        set("whole_frames_ratio", seen_whole(view, &groups));
        set(
            "received_mbps",
            (after - before) as f64 * 8e-6 / measured.as_secs_f64(),
        );
        set("frames_later_p50_ms", later_ms(view, all, &groups));
    }
    Ok(())
}

/// Returns the views of the three viewers, with the first part of the names of their figures.
fn views(members: &[Member]) -> Vec<(&'static str, &View)> {
    let behind = |member: usize| members[member].behind.as_ref();
    let views = [
        ("", Some(&members[0].view)),
        ("random_", behind(1)),
        ("queue_", behind(2)),
    ];
    views
        .into_iter()
        .filter_map(|(name, view)| Some((name, view?)))
        .collect()
}

fn received(members: &[Member]) -> Vec<u64> {
    views(members)
        .into_iter()
        .map(|(_, view)| view.media.0)
        .collect()
}

/// Returns how much later than at a viewer of the whole stream frames are complete, in the median.
fn later_ms(view: &View, all: &View, groups: &RangeInclusive<u32>) -> f64 {
    let complete: BTreeMap<u32, _> = all
        .shown
        .iter()
        .map(|shown| (shown.group, shown.completed))
        .collect();
    let shown = view
        .shown
        .iter()
        .filter(|shown| groups.contains(&shown.group));
    let later = shown.filter_map(|shown| {
        let first = complete.get(&shown.group)?;
        Some(shown.completed.saturating_since(*first).as_secs_f64() * 1e3)
    });
    median(later.collect())
}

fn behind(member: &mut Member) -> Result<&mut View> {
    member.behind.as_mut().context("there is a second view")
}
