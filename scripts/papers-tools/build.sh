# Sourced by papers-tools.sh: how each tool is built. Each function runs in the unpacked sources, with
# Go on PATH where it is needed, and puts what is kept into the folder $1; $2 is the commit.
# What also goes into images is linked statically as far as it can be, so that it runs there too, and
# without a build id, which tells the folder of the build: equal sources give an equal image, and a
# campaign that an image is part of can be resumed after the tools were built again.
# shellcheck shell=bash

build_sfnt-pingpong() {
    make -s -j2 -C src CC='gcc -static -Wl,--build-id=none' SFNT_VERSION="${2:0:7}" sfnt-pingpong
    install -s src/sfnt-pingpong "$1"
}

build_memtier_benchmark() {
    # Otherwise the version tells no commit, or that of a repository around this folder.
    sed -i "s/00000000/${2:0:8}/; s/if command -v git.*; then/if false; then/" version.sh
    autoreconf -i
    ./configure --quiet --disable-tls PKG_CONFIG='pkg-config --static' \
        LDFLAGS='-static -Wl,--build-id=none'
    make -s -j2
    install -s memtier_benchmark "$1"
}

build_wrk2() {
    make -s -j2 -C deps/luajit/src BUILDMODE=static
    # Its Lua code is looked up among its own dynamic symbols, which a static program has none of.
    make -s -j2 LIBS='-lluajit -l:libssl.a -l:libcrypto.a -lpthread -lm -ldl'
    install -s wrk "$1/wrk2"
}

build_weave() {
    go build -mod=vendor -tags 'osusergo netgo' \
        -ldflags "-s -w -X main.version=2.8.1-g${2:0:8}" -o "$1/weaver" ./prog/weaver
}

# With its own makefiles rkt cannot be built since GNU make 4.3. The flavour of stage 1 is the host's:
# rkt copies systemd and what it loads from the host into each pod, instead of compiling one.
build_rkt() {
    local module=github.com/rkt/rkt version root=$PWD/stage1-host/rootfs program network
    # Stores keep the first stage of pods by its version.
    version=1.30.0+git${2:0:8}.$(sha256sum <"$patch" | cut -c1-8)
    # Its packages have no module file: they are found below a GOPATH.
    mkdir -p "$GOPATH/src/${module%/*}"
    ln -s "$PWD" "$GOPATH/src/$module"
    export GO111MODULE=off CGO_ENABLED=1
    cd "$GOPATH/src/$module"
    mkdir -p "$root"/etc/rkt "$root"/rkt/{env,iottymux,status} "$root"/opt/stage2
    go_program "$1/rkt" "$module/rkt" "-X '$module/version.Version=$version'" \
        "-X 'main.rktFeatures=-TPM -SDJOURNAL'" \
        "-X 'main.buildDefaultStage1Name=coreos.com/rkt/stage1-host'" \
        "-X 'main.buildDefaultStage1Version=$version'" \
        "-X 'main.buildDefaultStage1ImageInRktDir=stage1-host.aci'"
    for program in init gc stop app_add app_rm app_start app_stop attach iottymux; do
        go_program "$root/$program" "$module/stage1/$program"
    done
    for network in main/ptp main/bridge main/macvlan ipam/host-local; do
        CGO_ENABLED=0 go_program "$root/usr/lib/rkt/plugins/net/${network#*/}" \
            "$module/vendor/github.com/containernetworking/cni/plugins/$network"
    done
    for program in enter prepare-app; do
        gcc -Os -static -s -o "$root/$program" "stage1/$program/$program.c"
    done
    gcc -Os -static -s -Istage1/diagnostic -o "$root/enterexec" \
        stage1/enterexec/enterexec.c stage1/diagnostic/diagnostic-util.c
    install stage1/reaper/reaper.sh "$root/reaper.sh"
    cp -r stage1/net/rootfs/etc "$root/"
    ln -s ../proc/self/mounts "$root/etc/mtab"
    echo rkt >"$root/etc/os-release"
    local units=$root/usr/lib/systemd/system
    mkdir -p "$units"/{default,sockets}.target.wants
    install -m 644 stage1/units/units/* "$units/"
    ln -s reboot.target "$units/ctrl-alt-del.target"
    ln -s usr/lib "$root/lib"
    ln -s usr/lib "$root/lib64"
    ln -s lib "$root/usr/lib64"
    ln -s usr/bin "$root/bin"
    ln -s host "$root/flavor"
    sed -e 's,@RKT_STAGE1_NAME@,coreos.com/rkt/stage1-host,' -e 's,@RKT_STAGE1_ENTER@,/enter,' \
        -e "s,@RKT_STAGE1_VERSION@,$version," -e 's,@RKT_STAGE1_STOP@,/stop,' \
        -e "s,@RKT_STAGE1_ARCH@,$(go env GOARCH)," \
        stage1/aci/aci-manifest.in >stage1-host/manifest
    tar --owner=0 --group=0 --numeric-owner -czf "$1/stage1-host.aci" -C stage1-host manifest rootfs
}

go_program() {
    local out=$1 package=$2
    shift 2
    go build -ldflags "-s -w $*" -o "$out" "$package"
}
