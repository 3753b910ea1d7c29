use super::bottleneck::{Bottleneck, Marking};
use super::media::Media;
use super::network::{Network, path};
use hawser_congestion::{Bounds, Prague, PragueConfig, Spread};
use hawser_units::{ByteSize, Instant};
use std::time::Duration;

/// Seeds of frame sizes, starts and losses. The constants of the controller were chosen with others.
pub(crate) const SEEDS: std::ops::RangeInclusive<u64> = 21..=23;

/// The first of them, for what varies little.
pub(crate) const FEW_SEEDS: std::ops::RangeInclusive<u64> = 21..=21;

/// The paper's bounds.
pub(crate) fn paper_bounds() -> Bounds {
    Bounds::default()
}

/// Returns a class with rates from given times on, which marks packets that waited for 1 ms.
pub(crate) fn step_marking(rates: &[(Duration, f64)]) -> Bottleneck {
    Bottleneck::new(
        rates,
        Marking::Step(Duration::from_millis(1)),
        ByteSize(2_000_000),
    )
}

/// Returns a function that creates a media flow for a seed.
pub(crate) fn prague(bounds: Bounds) -> impl Fn(u64) -> Media<Prague> {
    with(PragueConfig {
        bounds,
        ..PragueConfig::default()
    })
}

pub(crate) fn with(config: PragueConfig) -> impl Fn(u64) -> Media<Prague> {
    move |seed| {
        Media::new(
            0,
            Prague::new(config, Instant::ZERO),
            Spread::BorneRate,
            seed,
        )
    }
}

/// Runs a media flow alone.
pub(crate) fn run_alone(
    media: impl FnOnce(u64) -> Media<Prague>,
    bottleneck: Bottleneck,
    seed: u64,
    duration: Duration,
) -> Media<Prague> {
    let mut media = media(seed);
    Network::new(bottleneck, path(), path(), seed, vec![&mut media]).run(duration);
    media
}
