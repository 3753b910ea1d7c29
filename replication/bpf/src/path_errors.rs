use crate::skeleton::path_errors::{PathErrorsSkel, PathErrorsSkelBuilder, types};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_kernel::plain;
use hawser_kernel::program::{fd, open, test_run};
use hawser_kernel::records::Records;
use hawser_kernel::table::share_tables;
use hawser_shim::Shim;
use hawser_units::PathId;
use libbpf_rs::Object;
use libbpf_rs::skel::OpenSkel;
use std::collections::BTreeMap;

plain!(types::path_error);

/// An ICMP error that a copy is too big for a hop of its path, and quotes the outer headers of a copy.
/// Anyone who knows the addresses of a path can forge it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathError {
    /// The path.
    pub path: PathId,
    /// The MTU of the next hop, bytes; 0 if the router does not tell.
    pub mtu_bytes: u32,
    /// The shim, if the router quotes that much.
    pub shim: Option<Shim>,
}

/// The program that receives them, and its attachments.
pub(crate) struct PathErrors {
    skeleton: PathErrorsSkel<'static>,
    records: Records<types::path_error>,
    links: BTreeMap<u32, Link>,
}

impl PathErrors {
    /// Loads the program over the tables of a sender.
    pub(crate) fn load(sender: &Object, port: u16) -> Result<Self, LoadError> {
        let failed = LoadError::of("path_errors");
        let mut open = open::<PathErrorsSkelBuilder>().map_err(&failed)?;
        let constants = open.maps.rodata_data.as_deref_mut();
        constants.expect("the program has constants").port = port;
        share_tables(open.open_object_mut(), sender).map_err(&failed)?;
        let skeleton = open.load().map_err(&failed)?;
        Ok(PathErrors {
            records: Records::map(&skeleton.maps.path_errors)?,
            skeleton,
            links: BTreeMap::new(),
        })
    }

    /// Listens on these interfaces only, and again where another program has detached this one.
    pub(crate) fn attach(&mut self, interfaces: &[u32]) -> Result<(), AttachError> {
        self.links
            .retain(|ifindex, link| interfaces.contains(ifindex) && link.is_attached());
        for ifindex in interfaces {
            if !self.links.contains_key(ifindex) {
                let program = fd(&self.skeleton.progs.watch_path_errors);
                let link = Link::tcx_ingress(program, *ifindex)?;
                self.links.insert(*ifindex, link);
            }
        }
        Ok(())
    }

    /// Returns whether the program is still attached to an interface. `None` if it has not been.
    pub(crate) fn is_attached(&self, ifindex: u32) -> Option<bool> {
        self.links.get(&ifindex).map(Link::is_attached)
    }

    /// Returns the errors since the last call. The program records at most a hundred a second for
    /// each path.
    pub(crate) fn drain(&mut self) -> Vec<PathError> {
        self.records.drain().filter_map(|row| parse(&row)).collect()
    }

    pub(crate) fn run(&self, frame: &[u8]) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.watch_path_errors, frame, 1)
    }
}

/// Returns `None` if the error quotes a shim that cannot be ours.
fn parse(row: &types::path_error) -> Option<PathError> {
    let path = PathId::try_from(u8::try_from(row.path).ok()?).ok()?;
    let shim = match row.has_shim {
        0 => None,
        _ => Some(Shim::parse(&row.quoted).ok()?.0),
    };
    Some(PathError {
        path,
        mtu_bytes: row.mtu_bytes,
        shim,
    })
}
