use super::Start;
use crate::field::PRODUCTS;

pub(super) fn combine(
    destination: &mut [u8],
    coefficients: &[u8],
    sources: &[&[u8]],
    start: Start<'_>,
) {
    if let Start::Source(first) = start {
        let (copied, padding) = destination.split_at_mut(first.len().min(destination.len()));
        copied.copy_from_slice(&first[..copied.len()]);
        padding.fill(0);
    }
    for (coefficient, source) in coefficients.iter().zip(sources) {
        let products = &PRODUCTS[usize::from(*coefficient)];
        for (sum, byte) in destination.iter_mut().zip(*source) {
            *sum ^= products.with(*byte);
        }
    }
}
