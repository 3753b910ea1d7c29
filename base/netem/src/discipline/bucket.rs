use hawser_units::ByteSize;

/// A token bucket. It starts full.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    /// Bytes.
    tokens: f64,
}

impl Default for Bucket {
    fn default() -> Self {
        Bucket {
            tokens: f64::INFINITY,
        }
    }
}

impl Bucket {
    /// Adds `earned` bytes, up to a depth of `depth` bytes.
    pub(crate) fn fill(&mut self, earned: f64, depth: f64) {
        self.tokens = (self.tokens + earned).min(depth);
    }

    /// Takes the tokens of a packet. Returns `false` and takes none if there are not enough.
    pub(crate) fn take(&mut self, size: ByteSize) -> bool {
        let fits = self.tokens >= size.0 as f64;
        if fits {
            self.tokens -= size.0 as f64;
        }
        fits
    }

    /// Takes the tokens of a packet, into a debt of up to `limit` bytes if there are not enough.
    pub(crate) fn owe(&mut self, size: ByteSize, limit: f64) {
        self.tokens = (self.tokens - size.0 as f64).max(-limit).min(self.tokens);
    }

    /// Returns whether there is no debt.
    pub(crate) fn is_solvent(&self) -> bool {
        self.tokens >= 0.0
    }
}
