export {Encrypter, armor} from "age-encryption";
