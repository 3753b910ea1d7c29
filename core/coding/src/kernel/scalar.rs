use super::Start;
use crate::field::PRODUCTS;

pub(super) fn combine(
    destination: &mut [u8],
    coefficients: &[u8],
    sources: &[&[u8]],
    start: Start,
) {
    if start == Start::Zero {
        destination.fill(0);
    }
    for (coefficient, source) in coefficients.iter().zip(sources) {
        let products = &PRODUCTS[usize::from(*coefficient)];
        for (sum, byte) in destination.iter_mut().zip(*source) {
            *sum ^= products.with(*byte);
        }
    }
}
