"""Addresses: one set of rules for everyone who is given one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roster.model import Address, AddressError, parse_address, parse_addresses

names = st.from_regex(re.compile(r"[a-z0-9]([a-z0-9_.-]{0,20}[a-z0-9])?", re.ASCII), fullmatch=True)
hosts = names | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str)
ports = st.integers(1, 65_535)
addresses = st.builds(Address, hosts, ports)


@given(addresses)
def test_an_address_reads_as_it_is_written(address):
    assert parse_address(str(address)) == address
    assert parse_address(f"  {address}\n", default_port=1, listening=True) == address


@given(st.lists(addresses, min_size=1), st.sampled_from([",", ", ", " ,,"]))
def test_a_list_may_be_one_text_or_several(several, comma):
    text = comma.join(map(str, several))
    assert parse_addresses(text) == several
    assert parse_addresses(map(str, several)) == several
    assert parse_addresses([text, text]) == several * 2


@given(hosts.filter(lambda host: not host.isdigit()), ports)
def test_a_port_may_be_left_out_where_there_is_a_default(host, port):
    bare = f"[{host}]" if ":" in host else host
    assert parse_address(bare, default_port=port) == (host, port)
    with pytest.raises(AddressError, match="add the port, as in ") as refused:
        parse_address(bare)
    assert str(parse_address(refused.value.fix.removeprefix("add the port, as in "))) == f"{bare}:9092"


@given(st.text() | st.text("[]:/.,@% 0a1\u0661\t"), st.booleans(), st.sampled_from([None, 9092]))
@example("h:" + "9" * 5_000, False, None)
@example("[" * 5_000, False, 9092)
def test_any_text_is_an_address_that_can_be_written_or_one_clear_error(text, listening, default_port):
    address = refused = None
    try:
        address = parse_address(text, default_port=default_port, listening=listening)
    except AddressError as error:
        refused = error
    if address is None:
        assert refused.problem == f"{text!r} is not host:port"
        assert str(refused) == f"{refused.problem}; {refused.fix}"
    else:
        assert address.host == address.host.strip() != ""
        assert (0 if listening else 1) <= address.port <= 65_535
        assert parse_address(str(address), listening=listening) == address


@given(hosts, st.text() | st.sampled_from(["0", "65536", "-1", "+1", "1_0", "", " 1", "\u0661", "0x1", "9092/"]))
def test_a_port_is_from_1_to_65535(host, port):
    text = f"{Address(host, 0)}"[:-1] + port
    if re.fullmatch(r"0*[0-9]{1,5}", port.strip()) and 1 <= int(port) <= 65_535 and not port[0].isspace():
        assert parse_address(text) == (host, int(port))
    elif not re.search(r"[:\]\[]", port):
        with pytest.raises(
            AddressError, match=r"the port must be a number from 1 to 65535|leave out|give host and port"
        ):
            parse_address(text)


def test_only_who_listens_may_take_any_port():
    assert parse_address("h:0", listening=True) == ("h", 0)
    with pytest.raises(AddressError, match="the port must be a number from 1 to 65535"):
        parse_address("h:0")
    with pytest.raises(AddressError, match="the port must be a number from 0 to 65535"):
        parse_address("h:65536", listening=True)


GOOD = {
    "localhost:9092": ("localhost", 9092),
    "my_broker-1.example.:09092": ("my_broker-1.example.", 9092),
    "b\u00fccher.example:1": ("b\u00fccher.example", 1),
    "[::1]:9092": ("::1", 9092),
    "[fe80::1%eth0]:9092": ("fe80::1%eth0", 9092),
    "[::ffff:127.0.0.1]:65535": ("::ffff:127.0.0.1", 65_535),
}
BAD = {
    "": "give host and port, as in 127.0.0.1:9092",
    "9092": "give host and port, as in 127.0.0.1:9092",
    ":9092": "give host and port, as in 127.0.0.1:9092",
    "localhost": "add the port, as in localhost:9092",
    "[::1]": "add the port, as in [::1]:9092",
    "h:": "the port must be a number from 1 to 65535",
    "h:x": "the port must be a number from 1 to 65535",
    "h:9092/topic": "the port must be a number from 1 to 65535",
    "::1": "put an IPv6 address in brackets, as in [::1]:9092",
    "::1:9092": "put an IPv6 address in brackets, as in [::1]:9092",
    "fe80::1%eth0:9092": "put an IPv6 address in brackets, as in [::1]:9092",
    "[localhost]:9092": "give host and port, as in 127.0.0.1:9092",
    "[::1:9092": "give host and port, as in 127.0.0.1:9092",
    "a b:9092": "give host and port, as in 127.0.0.1:9092",
    "a:1,b:2": "give host and port, as in 127.0.0.1:9092",
    "me@h:9092": "give host and port, as in 127.0.0.1:9092",
    "PLAINTEXT://h:9092": "leave out PLAINTEXT://",
    "SASL_SSL://[::1]:9092": "leave out SASL_SSL://",
    "http://h": "leave out http://",
}


@pytest.mark.parametrize(("text", "address"), GOOD.items())
def test_what_an_address_is(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(("text", "fix"), BAD.items())
def test_what_is_none_is_told_with_its_fix(text, fix):
    with pytest.raises(AddressError) as refused:
        parse_address(text)
    assert str(refused.value) == f"{text!r} is not host:port; {fix}"


@pytest.mark.parametrize("nothing", ["", " , ", [], ["", ","]])
def test_a_list_needs_an_address(nothing):
    with pytest.raises(AddressError, match="no address given; give host and port, as in 127"):
        parse_addresses(nothing)


@pytest.mark.parametrize("thing", [9092, None, b"h:1", [("h", 1)], ["h:1", None]])
def test_a_list_is_of_texts(thing):
    with pytest.raises(AddressError, match="is not host:port; give text"):
        parse_addresses(thing, default_port=9092)
