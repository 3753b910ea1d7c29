/// The bytes that are left to read.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

/// The bytes end before the field does.
#[derive(Debug)]
pub(crate) struct Truncated;

impl<'a> Cursor<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Truncated> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn f32(&mut self) -> Result<f32, Truncated> {
        self.array().map(f32::from_be_bytes)
    }
}
