//! Code that all vector kernels share.

/// Defines `combine` (see [`super::Kernel`]) over vectors. The calling module provides
///
/// - `Vector`, of `BYTES` bytes, `zero()` and `load(&[u8; BYTES])`;
/// - `store(&mut [u8; BYTES], Vector)`;
/// - `load_part(&[u8])` and `store_part(&mut [u8], Vector)` for fewer bytes, where a load sets the
///   other bytes to zero and a store leaves them unchanged;
/// - `Factor`, `factor(coefficient)`: a coefficient in the form in which it is multiplied;
/// - `add_product(sum, Factor, Vector)`.
///
/// It is a macro because a generic function cannot enable target features, and functions with
/// target features are not inlined into functions without them.
macro_rules! define_combine {
    ($features:literal) => {
        /// The number of vectors that are summed side by side. This hides the latency of the
        /// additions, each of which depends on the one before, and uses a factor for more products.
        const WIDE: usize = 8;

        #[target_feature(enable = $features)]
        pub(super) fn combine(
            destination: &mut [u8],
            coefficients: &[u8],
            sources: &[&[u8]],
            start: crate::kernel::Start<'_>,
        ) {
            let mut at = 0;
            while destination.len() - at >= WIDE * BYTES {
                sum::<WIDE>(&mut destination[at..], at, coefficients, sources, start);
                at += WIDE * BYTES;
            }
            while destination.len() - at >= 4 * BYTES {
                sum::<4>(&mut destination[at..], at, coefficients, sources, start);
                at += 4 * BYTES;
            }
            while at < destination.len() {
                sum::<2>(&mut destination[at..], at, coefficients, sources, start);
                at += 2 * BYTES;
            }
        }

        /// Computes the first `N` vectors of `destination` from the sources' bytes starting at
        /// `at`.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum<const N: usize>(
            destination: &mut [u8],
            at: usize,
            coefficients: &[u8],
            sources: &[&[u8]],
            start: crate::kernel::Start<'_>,
        ) {
            let first = match start {
                crate::kernel::Start::Destination => &*destination,
                crate::kernel::Start::Source(first) => first.get(at..).unwrap_or_default(),
            };
            let mut sums = [zero(); N];
            // Here and below, one check of the length for all vectors is faster than one for each.
            if let Some((vectors, _)) = first.split_at_checked(N * BYTES) {
                let (vectors, _) = vectors.as_chunks();
                for i in 0..N {
                    sums[i] = load(&vectors[i]);
                }
            } else if !first.is_empty() {
                for i in 0..N {
                    sums[i] = load_up_to(first, i);
                }
            }
            for (coefficient, source) in coefficients.iter().zip(sources) {
                let Some(source) = source.get(at..) else {
                    continue;
                };
                let factor = factor(*coefficient);
                if let Some((vectors, _)) = source.split_at_checked(N * BYTES) {
                    let (vectors, _) = vectors.as_chunks();
                    for i in 0..N {
                        sums[i] = add_product(sums[i], factor, load(&vectors[i]));
                    }
                } else {
                    for i in 0..N {
                        sums[i] = add_product(sums[i], factor, load_up_to(source, i));
                    }
                }
            }
            if let Some((vectors, _)) = destination.split_at_mut_checked(N * BYTES) {
                let (vectors, _) = vectors.as_chunks_mut();
                for i in 0..N {
                    store(&mut vectors[i], sums[i]);
                }
            } else {
                for i in 0..N {
                    store_up_to(destination, i, sums[i]);
                }
            }
        }

        /// Loads vector number `i` of `bytes`, padded with zeros past their end.
        #[inline]
        #[target_feature(enable = $features)]
        fn load_up_to(bytes: &[u8], i: usize) -> Vector {
            let bytes = bytes.get(i * BYTES..).unwrap_or_default();
            match bytes.first_chunk() {
                Some(whole) => load(whole),
                // A masked load of no bytes is slow if the address is not readable.
                None if bytes.is_empty() => zero(),
                None => load_part(bytes),
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store_up_to(bytes: &mut [u8], i: usize, vector: Vector) {
            let bytes = bytes.get_mut(i * BYTES..).unwrap_or_default();
            match bytes.first_chunk_mut() {
                Some(whole) => store(whole, vector),
                None => store_part(bytes, vector),
            }
        }
    };
}

/// Defines `load_part` and `store_part` for instruction sets without masked loads and stores.
macro_rules! define_parts {
    ($features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn load_part(bytes: &[u8]) -> Vector {
            let mut whole = [0; BYTES];
            whole[..bytes.len()].copy_from_slice(bytes);
            load(&whole)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store_part(bytes: &mut [u8], vector: Vector) {
            let mut whole = [0; BYTES];
            store(&mut whole, vector);
            bytes.copy_from_slice(&whole[..bytes.len()]);
        }
    };
}

pub(super) use {define_combine, define_parts};
