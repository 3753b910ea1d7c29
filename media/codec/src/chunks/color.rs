//! Colours in luma and chroma, as differences to a prediction from the points before.

/// Steps from which on the prediction averages several points, since they then contain less noise
/// of the sensor than of the quantisation.
const AVERAGING_SHIFT: u8 = 2;

/// Luma and chroma: the reversible transform YCoCg-R (Malvar and Sullivan, JVT-I014r3, 2003).
pub(super) type Ycc = [i32; 3];

#[inline]
pub(super) fn ycc_of([r, g, b]: [u8; 3]) -> Ycc {
    let (r, g, b) = (i32::from(r), i32::from(g), i32::from(b));
    let co = r - b;
    let middle = b + (co >> 1);
    let cg = g - middle;
    [middle + (cg >> 1), co, cg]
}

#[inline]
pub(super) fn rgb_of([y, co, cg]: Ycc) -> [u8; 3] {
    let middle = y.wrapping_sub(cg >> 1);
    let g = cg.wrapping_add(middle);
    let b = middle.wrapping_sub(co >> 1);
    let r = b.wrapping_add(co);
    if (r | g | b) & !0xff == 0 {
        return [r as u8, g as u8, b as u8];
    }
    [r, g, b].map(|channel| channel.clamp(0, 255) as u8)
}

/// The colours of the last points as a decoder knows them, in steps of 2^`SHIFT`.
#[derive(Debug, Clone, Copy)]
pub(super) struct History<const SHIFT: u8> {
    last: [Ycc; 3],
}

impl<const SHIFT: u8> History<SHIFT> {
    pub(super) fn new(first: Ycc) -> Self {
        History { last: [first; 3] }
    }

    #[inline]
    fn predict(&self) -> Ycc {
        let [a, b, c] = &self.last;
        if SHIFT < AVERAGING_SHIFT {
            return *a;
        }
        let mean = |channel: usize| {
            let sum = a[channel].wrapping_mul(2).wrapping_add(b[channel]);
            sum.wrapping_add(c[channel]) >> 2
        };
        [mean(0), mean(1), mean(2)]
    }

    /// Returns the steps from the prediction to a colour, and takes it as the next prediction.
    #[inline]
    pub(super) fn quantise(&mut self, color: Ycc) -> [u32; 3] {
        let predicted = self.predict();
        let half = (1 << SHIFT) >> 1;
        let steps = |channel: usize| {
            let difference = color[channel] - predicted[channel];
            if SHIFT == 0 {
                return difference;
            }
            let sign = difference >> 31;
            let steps = ((difference ^ sign) - sign + half) >> SHIFT;
            (steps ^ sign) - sign
        };
        let [y, co, cg] = [steps(0), steps(1), steps(2)];
        self.advance(predicted, [y, co, cg]);
        let unsigned = |steps: i32| (steps << 1 ^ steps >> 31) as u32;
        [unsigned(y), unsigned(co), unsigned(cg)]
    }

    #[inline]
    pub(super) fn restore(&mut self, [y, co, cg]: [u32; 3]) -> Ycc {
        let signed = |steps: u32| (steps >> 1) as i32 ^ -((steps & 1) as i32);
        self.advance(self.predict(), [signed(y), signed(co), signed(cg)]);
        self.last[0]
    }

    #[inline]
    fn advance(&mut self, predicted: Ycc, steps: Ycc) {
        let next = |channel: usize| {
            predicted[channel].wrapping_add(steps[channel].wrapping_shl(SHIFT.into()))
        };
        self.last = [[next(0), next(1), next(2)], self.last[0], self.last[1]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_transformed_without_loss() {
        for color in 0..1 << 24 {
            let [_, r, g, b] = u32::to_be_bytes(color);
            assert_eq!(rgb_of(ycc_of([r, g, b])), [r, g, b]);
        }
    }

    #[test]
    fn colours_out_of_range_are_moved_to_the_nearest_channel() {
        assert_eq!(rgb_of([300, 0, 0]), [255; 3]);
        assert_eq!(rgb_of([-1, 0, 0]), [0; 3]);
        assert_eq!(rgb_of([128, 300, -1]), [255, 128, 0]);
    }
}
