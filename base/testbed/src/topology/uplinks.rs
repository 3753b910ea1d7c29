use crate::netns::{Error, Namespace};

/// Gives the devices of an edge's paths the names of uplinks, in the order of the paths, and one
/// address each. An uplink is a name with the first three bytes of its addresses, whose last one is
/// `host`. The reverse path filter is loose, as distributions have it.
///
/// # Errors
/// If there is no such device.
pub fn name_uplinks(
    namespace: &Namespace,
    uplinks: &[(&str, &str)],
    host: u8,
) -> Result<(), Error> {
    for (number, (name, network)) in (1..).zip(uplinks) {
        namespace.ip(&format!(
            "link set path{number} down\naddress flush dev path{number}\n\
             link set path{number} name {name}\nlink set {name} up\n\
             address add {network}.{host}/24 dev {name}"
        ))?;
    }
    namespace.sysctl("net.ipv4.conf.all.rp_filter", "2")
}
