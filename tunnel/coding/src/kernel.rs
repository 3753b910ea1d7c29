//! Sums of products over GF(2^8), computed with the widest instructions of the processor.
//!
//! All kernels compute the same results; [`Kernel::scalar`] is the reference. The rest of the crate
//! uses the fastest kernel, unless it is given another one.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

use std::fmt;
use std::iter;
use std::sync::LazyLock;

/// An implementation of sums of products. A value exists only for implementations that the
/// processor supports.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    combine: Combine,
}

/// Multiplies each source by its coefficient, sums the products and the start value, and writes the
/// sum to the first slice. The processor has to support the instructions.
type Combine = unsafe fn(&mut [u8], &[u8], &[&[u8]], Start<'_>);

/// The start value of a sum.
#[derive(Clone, Copy)]
enum Start<'a> {
    Destination,
    /// These bytes, padded with zeros.
    Source(&'a [u8]),
}

static BEST: LazyLock<Kernel> = LazyLock::new(|| {
    Kernel::available()
        .pop()
        .expect("the scalar kernel is always available")
});

impl Kernel {
    /// Returns the kernels that this processor supports, the fastest last.
    pub fn available() -> Vec<Kernel> {
        let kernels = iter::once(Kernel::scalar());
        #[cfg(target_arch = "aarch64")]
        let kernels = kernels.chain(neon::detect());
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let kernels = kernels.chain(x86::detect());
        kernels.collect()
    }

    /// Returns the fastest kernel.
    pub fn best() -> Kernel {
        *BEST
    }

    /// Returns the kernel without special instructions.
    pub const fn scalar() -> Kernel {
        Kernel {
            name: "scalar",
            combine: scalar::combine,
        }
    }

    /// Returns the name of the kernel's instruction set, such as `avx2`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Sets `destination` to the sum of the sources, each multiplied by the coefficient at the same
    /// index. Sources shorter than the destination are padded with zeros; bytes beyond the
    /// destination's length are ignored.
    ///
    /// # Panics
    /// If the numbers of coefficients and sources differ.
    pub fn dot(self, destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
        self.combine(destination, coefficients, sources, Start::Source(&[]));
    }

    /// Sets `destination` to the sum of `first`, which has coefficient 1, and of the other sources,
    /// each multiplied by its coefficient. Lengths may differ as in [`Kernel::dot`].
    ///
    /// # Panics
    /// If the numbers of coefficients and sources differ.
    pub fn dot_from(
        self,
        destination: &mut [u8],
        first: &[u8],
        coefficients: &[u8],
        sources: &[&[u8]],
    ) {
        self.combine(destination, coefficients, sources, Start::Source(first));
    }

    /// Adds to `destination` the sum that [`Kernel::dot`] computes.
    ///
    /// # Panics
    /// If the numbers of coefficients and sources differ.
    pub fn dot_add(self, destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
        self.combine(destination, coefficients, sources, Start::Destination);
    }

    /// Adds `coefficient` times `source` to `destination`, up to the length of the shorter slice.
    pub fn mul_add(self, destination: &mut [u8], coefficient: u8, source: &[u8]) {
        self.combine(destination, &[coefficient], &[source], Start::Destination);
    }

    #[allow(
        unsafe_code,
        reason = "calls a function whose instructions the processor has to support"
    )]
    fn combine(
        self,
        destination: &mut [u8],
        coefficients: &[u8],
        sources: &[&[u8]],
        start: Start<'_>,
    ) {
        assert_eq!(
            coefficients.len(),
            sources.len(),
            "numbers of coefficients and sources differ"
        );
        // SAFETY: kernels other than the scalar one are created only by `available`, which checks
        // that the processor supports them.
        unsafe { (self.combine)(destination, coefficients, sources, start) }
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.name == other.name
    }
}

impl Eq for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
