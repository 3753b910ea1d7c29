//! Every kernel that the processor supports computes the same as the scalar one, and the scalar one
//! the same as the field.

use hawser_coding::field::multiply;
use hawser_coding::kernel::Kernel;
use proptest::collection::vec;
use proptest::prelude::*;

/// A little more than twice what any kernel sums in one iteration.
const LONG: usize = 1100;

/// Bytes around a destination that must not change.
const MARGIN: usize = 64;

fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[test]
fn the_scalar_kernel_multiplies_as_the_field() {
    let all: Vec<u8> = (0..=255).collect();
    for coefficient in 0..=255 {
        let mut products = vec![0; 256];
        Kernel::scalar().dot(&mut products, &[coefficient], &[&all]);
        let expected: Vec<u8> = all
            .iter()
            .map(|byte| multiply(coefficient, *byte))
            .collect();
        assert_eq!(products, expected, "{coefficient}");
    }
}

#[test]
fn every_product_is_the_same() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for coefficient in 0..=255 {
            let (mut ours, mut reference) = ([0x5a; 256], [0x5a; 256]);
            kernel.mul_add(&mut ours, coefficient, &all);
            Kernel::scalar().mul_add(&mut reference, coefficient, &all);
            assert_eq!(ours, reference, "{kernel:?}, {coefficient}");
        }
    }
}

#[test]
fn every_length_at_every_alignment_is_the_same() {
    let source = bytes(LONG + 64);
    let before = bytes(LONG + 2 * MARGIN + 64);
    for kernel in Kernel::available() {
        for length in 0..=LONG {
            // Testing all pairs of alignments would take a minute; this covers every alignment of
            // each.
            for alignment in 0..64 {
                let source = &source[alignment..][..length];
                let at = MARGIN + (alignment * 7) % 64;
                let (mut ours, mut reference) = (before.clone(), before.clone());
                kernel.mul_add(&mut ours[at..at + length], 0x8e, source);
                Kernel::scalar().mul_add(&mut reference[at..at + length], 0x8e, source);
                assert_eq!(
                    ours, reference,
                    "{kernel:?}, {length} bytes, alignment {alignment}"
                );
            }
        }
    }
}

#[test]
fn a_sum_without_sources_is_zero() {
    for kernel in Kernel::available() {
        let mut sum = [1; 100];
        kernel.dot_add(&mut sum, &[], &[]);
        assert_eq!(sum, [1; 100], "{kernel:?}");
        kernel.dot(&mut sum, &[], &[]);
        assert_eq!(sum, [0; 100], "{kernel:?}");
    }
}

#[test]
fn a_sum_begins_with_a_source() {
    for kernel in Kernel::available() {
        let mut sum = [9; 100];
        kernel.dot_from(&mut sum, &[5; 70], &[1], &[&[3; 200]]);
        assert_eq!(sum[..70], [5 ^ 3; 70], "{kernel:?}");
        assert_eq!(sum[70..], [3; 30], "{kernel:?}");
    }
}

#[test]
fn the_best_kernel_is_available() {
    let available = Kernel::available();
    assert!(available.iter().any(|kernel| *kernel == Kernel::best()));
    assert_eq!(available[0].name(), "scalar");
}

#[test]
#[should_panic(expected = "numbers of coefficients and sources differ")]
fn a_source_without_a_coefficient_is_a_mistake() {
    Kernel::best().dot(&mut [0], &[1], &[&[1], &[2]]);
}

proptest! {
    #[test]
    fn every_sum_is_the_same(
        length in 0..LONG,
        at in 0..MARGIN,
        first in vec(any::<u8>(), 0..LONG + 64),
        sources in vec((any::<u8>(), vec(any::<u8>(), 0..LONG + 64)), 0..12),
        before in vec(any::<u8>(), LONG + 2 * MARGIN),
    ) {
        let coefficients: Vec<u8> = sources.iter().map(|(coefficient, _)| *coefficient).collect();
        let sources: Vec<&[u8]> = sources.iter().map(|(_, source)| &source[..]).collect();
        let place = at..at + length;
        let (mut dot, mut dot_add, mut dot_from) = (before.clone(), before.clone(), before.clone());
        Kernel::scalar().dot(&mut dot[place.clone()], &coefficients, &sources);
        Kernel::scalar().dot_add(&mut dot_add[place.clone()], &coefficients, &sources);
        Kernel::scalar().dot_from(&mut dot_from[place.clone()], &first, &coefficients, &sources);
        for kernel in Kernel::available() {
            let mut ours = before.clone();
            kernel.dot(&mut ours[place.clone()], &coefficients, &sources);
            prop_assert_eq!(&ours, &dot, "{:?}", kernel);
            ours.clone_from(&before);
            kernel.dot_add(&mut ours[place.clone()], &coefficients, &sources);
            prop_assert_eq!(&ours, &dot_add, "{:?}", kernel);
            ours.clone_from(&before);
            kernel.dot_from(&mut ours[place.clone()], &first, &coefficients, &sources);
            prop_assert_eq!(&ours, &dot_from, "{:?}", kernel);
        }
    }
}
