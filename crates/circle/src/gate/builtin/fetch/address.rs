//! Which addresses may be reached?
//!
//! Only those of the public internet. Every address that only this machine, its network or its provider answers is
//! refused: a page that an entity has read can tell it what to fetch, and the entity must not become a way into those
//! networks. For IPv6 the rule names the allowed range, so an address of an unforeseen kind is refused. For IPv4 the
//! rule names every range that is not public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The reason why an address is refused; the texts are those of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockedAddress {
    Private,
    Metadata,
}

impl BlockedAddress {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Private => "private_address",
            Self::Metadata => "metadata_endpoint",
        }
    }
}

/// The addresses at which cloud providers return a machine's own credentials.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Checks a host name: names of metadata services, which only some resolvers know, and names of this machine.
pub(super) fn blocked_host(host: &str) -> Option<BlockedAddress> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let metadata = matches!(host.as_str(), "metadata" | "metadata.google.internal" | "instance-data");
    let private = host == "localhost" || host.ends_with(".localhost");
    if metadata { Some(BlockedAddress::Metadata) } else { private.then_some(BlockedAddress::Private) }
}

pub(super) fn blocked_address(address: IpAddr) -> Option<BlockedAddress> {
    match address {
        IpAddr::V4(address) => refused_v4(address),
        IpAddr::V6(address) => refused_v6(address),
    }
}

fn refused_v4(address: Ipv4Addr) -> Option<BlockedAddress> {
    if METADATA_V4.contains(&address) {
        return Some(BlockedAddress::Metadata);
    }
    let private = match address.octets() {
        // This network, private, loopback, link-local, multicast, reserved and broadcast.
        [0 | 10 | 127 | 224..=255, ..] | [169, 254, ..] | [192, 168, ..] => true,
        [172, second, ..] => (16..=31).contains(&second),
        // Shared address space of a provider's customers.
        [100, second, ..] => (64..=127).contains(&second),
        // Protocol assignments, documentation, relays, benchmarks.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        [_, _, _, _] => false,
    };
    private.then_some(BlockedAddress::Private)
}

fn refused_v6(address: Ipv6Addr) -> Option<BlockedAddress> {
    if address == METADATA_V6 {
        return Some(BlockedAddress::Metadata);
    }
    let [a, b, c, d, e, f, g, h] = address.segments();
    let within = |high: u16, low: u16| {
        let ([w, x], [y, z]) = (high.to_be_bytes(), low.to_be_bytes());
        refused_v4(Ipv4Addr::new(w, x, y, z))
    };
    match [a, b, c, d, e, f] {
        // An embedded IPv4 address: mapped, or translated at the edge of a network.
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => within(g, h),
        // An embedded IPv4 address behind a 6to4 relay, which anyone may run.
        [0x2002, high, low, ..] => within(high, low).or(Some(BlockedAddress::Private)),
        // Tunnels, documentation.
        [0x2001, 0 | 0xdb8, ..] | [0x3fff, ..] => Some(BlockedAddress::Private),
        // Global unicast.
        [0x2000..=0x3fff, ..] => None,
        [_, _, _, _, _, _] => Some(BlockedAddress::Private),
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockedAddress, blocked_address, blocked_host};

    #[test]
    fn only_public_addresses_are_let_through() {
        for address in ["1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111"] {
            assert_eq!(blocked_address(address.parse().expect("an address")), None, "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.0.1",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "fec0::1",
            "4000::1",
        ] {
            assert_eq!(
                blocked_address(address.parse().expect("an address")),
                Some(BlockedAddress::Private),
                "{address}"
            );
        }
        for address in
            ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"]
        {
            assert_eq!(
                blocked_address(address.parse().expect("an address")),
                Some(BlockedAddress::Metadata),
                "{address}"
            );
        }
    }

    #[test]
    fn names_of_the_machine_and_of_its_provider_are_refused_before_anyone_is_asked() {
        assert_eq!(blocked_host("LOCALHOST."), Some(BlockedAddress::Private));
        assert_eq!(blocked_host("a.localhost"), Some(BlockedAddress::Private));
        assert_eq!(blocked_host("metadata.google.internal"), Some(BlockedAddress::Metadata));
        assert_eq!(blocked_host("example.com"), None);
    }
}
