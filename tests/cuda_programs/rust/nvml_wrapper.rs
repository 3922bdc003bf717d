//! Name and total MiB of each card.

use nvml_wrapper::Nvml;

fn main() {
    let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().expect("NVML");
    for index in 0..nvml.device_count().expect("a count") {
        let device = nvml.device_by_index(index).expect("a device");
        println!("{}\t{}", device.name().expect("a name"), device.memory_info().expect("its memory").total >> 20);
    }
}
