use hawser_kernel::link::{AttachError, Link, XdpMode, xdp_mode};
use std::io;
use std::os::fd::BorrowedFd;

/// The hook at which copies that arrive on an interface are deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveHook {
    /// XDP, for packets with an Ethernet header.
    Xdp(XdpMode),
    /// TC ingress (Linux 6.6).
    Tc {
        /// Whether the packets have an Ethernet header.
        has_ethernet: bool,
    },
}

impl ReceiveHook {
    /// Returns whether an attachment at this hook can get the program of the other one.
    pub(crate) fn is_at_place_of(self, other: Self) -> bool {
        let is_tc = |hook| matches!(hook, ReceiveHook::Tc { .. });
        self == other || is_tc(self) && is_tc(other)
    }
}

impl From<XdpMode> for ReceiveHook {
    fn from(mode: XdpMode) -> Self {
        ReceiveHook::Xdp(mode)
    }
}

/// Attaches a program that deduplicates.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    hook: ReceiveHook,
) -> Result<Link, AttachError> {
    match hook {
        ReceiveHook::Xdp(mode) => Link::xdp(program, ifindex, mode),
        ReceiveHook::Tc { .. } => Link::tcx_ingress(program, ifindex),
    }
}

/// Returns the hook of an attachment to an interface, at TC whatever the packets' header is; `None` if
/// it has ended.
pub(crate) fn hook_of(link: &Link, ifindex: u32) -> io::Result<Option<ReceiveHook>> {
    if link.is_at_tc()? {
        return Ok(Some(ReceiveHook::Tc { has_ethernet: true }));
    }
    Ok(xdp_mode(ifindex)?.map(ReceiveHook::Xdp))
}
