use crate::skeleton::pass::{PassSkel, PassSkelBuilder};
use crate::{AttachError, Link, LoadError, XdpMode};
use hawser_kernel::program::{fd, open};
use libbpf_rs::skel::OpenSkel;

/// A program that passes every frame to the kernel, in native XDP.
///
/// Some drivers accept frames that XDP redirects from elsewhere only while a program is attached to
/// their device. To attach it also shows whether a driver has native XDP, where the kernel does not
/// tell.
pub struct Passing {
    skeleton: PassSkel<'static>,
}

impl Passing {
    /// Loads the program.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("pass");
        let open = open::<PassSkelBuilder>().map_err(&failed)?;
        let skeleton = open.load().map_err(&failed)?;
        Ok(Passing { skeleton })
    }

    /// Attaches the program to an interface until the link is dropped or the process ends.
    pub fn attach(&self, ifindex: u32) -> Result<Link, AttachError> {
        Link::xdp(fd(&self.skeleton.progs.pass), ifindex, XdpMode::Native)
    }
}
