use std::time::Duration;

/// Returns the smoothed round-trip time after a new sample: seven eighths of the previous one and
/// one eighth of the sample (RFC 6298, section 2.3; RFC 9002, section 5.3). The first sample is the
/// first smoothed time.
///
/// ```
/// use hawser_units::smoothed_rtt;
/// use std::time::Duration;
///
/// let ms = Duration::from_millis;
/// assert_eq!(smoothed_rtt(None, ms(40)), ms(40));
/// assert_eq!(smoothed_rtt(Some(ms(40)), ms(48)), ms(41));
/// ```
pub fn smoothed_rtt(previous: Option<Duration>, sample: Duration) -> Duration {
    previous.map_or(sample, |previous| (previous * 7 + sample) / 8)
}
